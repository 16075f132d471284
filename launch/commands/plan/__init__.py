"""`megaxf plan`: questions before a run, each a file of this folder."""

DEFAULT = "budget"

HELP = "decide what to train: from a budget to a run; laws, shapes, memory, speed, layouts"

EXAMPLE = """\
examples:
  megaxf plan --budget '$2M' --gpu h100 --nodes 64  what to train for that, in which layout, in how many days?
  megaxf plan laws --flops 5.76e23                  what to train with this compute, and how sure is that?
  megaxf plan laws --params 8b --tokens 15T         what does training beyond the optimum cost?
  megaxf plan ladder run.yaml --flops 1e19 -o DIR   small runs to fit a law of one's own from
  megaxf plan fit ladder -o fit                     the law that they follow, with its interval
  megaxf plan shape --params 7b -o model.yaml       which layers, heads and widths make a good model of that size?
  megaxf plan flops run.yaml                        how much work is it, and what MFU is a speed?
  megaxf plan memory run.yaml --world-size 64       what does a rank of this run hold, and does it fit?
  megaxf plan throughput run.yaml --gpu h100        how long does a step take, and where does the time go?
  megaxf plan layout llama3-8b --gpu h100 --nodes 8 --batch 512    the fastest layouts that fit
  megaxf plan schedule --stages 8 -o stages.png     when do the stages of a pipeline compute, when wait?

`megaxf plan VERB --help` says more.
"""
