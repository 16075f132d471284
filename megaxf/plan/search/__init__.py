"""The layouts that a cluster allows for a model, the fastest that fits, and what more GPUs would bring."""
