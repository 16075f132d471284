"""Numbers about a run before it starts: parameters, FLOPs, hardware. Needs no torch."""
