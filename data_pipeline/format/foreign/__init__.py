"""Token files of other libraries: one module a format, found by its name.

Each has HELP (a line), SUFFIX (how the names of its files end), `size(path)` (bytes of ids) and
`documents(path, options)`, which gives the documents in order as pieces whose ids may have any integer type and may
lack the end-of-document id.
"""
