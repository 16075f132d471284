"""megaxf: pretraining of large language models on clusters."""

__version__ = "0.1.0"
