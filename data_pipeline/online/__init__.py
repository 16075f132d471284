"""Batches of text that is tokenised while training, for quick trials."""
