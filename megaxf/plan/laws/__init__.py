"""Scaling laws: published constants by name, and what follows from them. Needs numpy and scipy only."""
