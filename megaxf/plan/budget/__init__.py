"""From a budget to a run: what to train, on how much, in which layout, how long, for how much."""
