"""A data set in any store that fsspec knows, read through a bounded cache on the node's own disk."""
