"""`megaxf plan`: questions before a run, each a file of this folder."""

HELP = "decide what to train: scaling laws and their fit, memory, schedules"

EXAMPLE = """\
examples:
  megaxf plan laws --flops 5.76e23                  what to train with this compute, and how sure is that?
  megaxf plan laws --params 8b --tokens 15T         what does training beyond the optimum cost?
  megaxf plan ladder run.yaml --flops 1e19 -o DIR   small runs to fit a law of one's own from
  megaxf plan fit ladder -o fit                     the law that they follow, with its interval
  megaxf plan memory run.yaml --world-size 64       what does a rank of this run hold, and does it fit?
  megaxf plan schedule --stages 8 -o stages.png     when do the stages of a pipeline compute, when wait?

`megaxf plan VERB --help` says more.
"""
