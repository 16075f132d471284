"""`megaxf data`: what can be done with token shards once they are there, each a file of this folder."""

HELP = "check, merge, cut, import and export token shards; say what a run read of them"

EXAMPLE = """\
examples:
  megaxf data inspect tokens/                                      how much of what is in it?
  megaxf data verify tokens/                                       is every byte as it was written?
  megaxf data merge tokens/2025 tokens/2026 --output tokens/both   two as one
  megaxf data reshard tokens/ --shard-tokens 5000000 --output s/   shards of another size
  megaxf data import corpus.idx --tokenizer T --output tokens/     from Megatron, datatrove, MDS or plain arrays
  megaxf data export tokens/ --output megatron/                    to Megatron
  megaxf data pack tokens/ --sequence-length 4096                  rows for data.packing: best_fit, made beforehand
  megaxf data batch runs/mine 1200                                 which documents were in step 1200?
  megaxf data coverage runs/mine                                   has the run read every sample once?

`megaxf data VERB --help` says more.
"""
