"""What a run has done and what is to come, on one page, from what lies in its folder; also while it runs."""
