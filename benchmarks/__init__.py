"""Benchmarks: one script a question, each side by side with what a user would pick instead; each prints a ratio."""
