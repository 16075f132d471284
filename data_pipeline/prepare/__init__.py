"""Text to token shards, with any number of processes."""
