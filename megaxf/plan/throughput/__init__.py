"""How long a step takes, and why: compute, communication, pipeline, optimizer. Needs no torch."""
