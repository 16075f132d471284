"""`megaxf data`: what can be done with token shards once they are there, each a file of this folder."""

HELP = "look at token shards, check, merge, cut anew, import and export them"

EXAMPLE = """\
examples:
  megaxf data inspect tokens/                              how much of what is in it?
  megaxf data verify tokens/                               is every byte as it was written?
"""
