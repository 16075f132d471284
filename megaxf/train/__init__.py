"""The training loop and what belongs to it: schedules, evaluation, metrics, guards, the run folder."""
