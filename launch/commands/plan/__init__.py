"""`megaxf plan`: questions before a run, each a file of this folder."""

HELP = "decide what to train: scaling laws and their fit, shapes, memory, throughput, schedules"

EXAMPLE = """\
examples:
  megaxf plan laws --flops 5.76e23                  what to train with this compute, and how sure is that?
  megaxf plan laws --params 8b --tokens 15T         what does training beyond the optimum cost?
  megaxf plan ladder run.yaml --flops 1e19 -o DIR   small runs to fit a law of one's own from
  megaxf plan fit ladder -o fit                     the law that they follow, with its interval
  megaxf plan shape --params 7b -o model.yaml       which layers, heads and widths make a good model of that size?
  megaxf plan flops run.yaml                        how much work is it, and what MFU is a speed?
  megaxf plan memory run.yaml --world-size 64       what does a rank of this run hold, and does it fit?
  megaxf plan throughput run.yaml --gpu h100        how long does a step take, and where does the time go?
  megaxf plan schedule --stages 8 -o stages.png     when do the stages of a pipeline compute, when wait?

`megaxf plan VERB --help` says more.
"""
