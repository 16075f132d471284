"""Tokens and documents to rows of a batch."""
