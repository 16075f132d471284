"""Fit a scaling law to runs: three approaches of arXiv 2203.15556, with intervals. Needs numpy and scipy only."""
