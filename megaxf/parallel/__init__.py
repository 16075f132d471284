"""Ranks, the groups they form, and what is said between them."""
