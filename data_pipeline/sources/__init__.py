"""Where documents come from: one file for each kind of input, found by its name; nothing else knows the kinds."""
