"""Shapes of models: proposals for a size, beside those that were published."""
