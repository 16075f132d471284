"""What a run has read: which documents were in a step, and whether every sample was read once."""
