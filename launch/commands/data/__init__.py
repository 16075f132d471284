"""`megaxf data`: what can be done with token shards once they are there, each a file of this folder."""

HELP = "look at token shards, check, merge, cut anew, import and export them"

EXAMPLE = """\
examples:
  megaxf data inspect tokens/                                      how much of what is in it?
  megaxf data verify tokens/                                       is every byte as it was written?
  megaxf data merge tokens/2025 tokens/2026 --output tokens/both   two as one
  megaxf data reshard tokens/ --shard-tokens 50000000 --output DIR smaller shards
  megaxf data import corpus.idx --tokenizer T --output tokens/     from Megatron, datatrove, MDS or plain arrays
  megaxf data export tokens/ --output megatron/                    to Megatron

`megaxf data VERB --help` says more.
"""
