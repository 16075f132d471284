"""Benchmarks of the token pipeline."""
