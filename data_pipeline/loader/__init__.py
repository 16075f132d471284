"""Batches for the ranks of a run."""
