"""What lies on disk: the `megaxf-tokens/1` format, its writer, its reader and its checks."""
