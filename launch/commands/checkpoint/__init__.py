"""`megaxf checkpoint`: what has been saved, and is it whole? Each verb a file of this folder."""

HELP = "list, check, look into and compare checkpoints"

EXAMPLE = """\
examples:
  megaxf checkpoint list runs/mine             which are there, how old, and are they whole?
  megaxf checkpoint list s3://bucket/mine      in a store that fsspec knows
  megaxf checkpoint verify runs/mine           is every byte as it was written?
  megaxf checkpoint inspect runs/mine          parameters, settings, place in the data of the newest
  megaxf checkpoint diff runs/mine runs/other  what differs, and by how much?

`megaxf checkpoint VERB --help` says more.
"""
