"""What changes between the vocabulary of a trained model and that of the run that starts from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from megaxf.checkpoint.files import Place
from megaxf.models.initialize import initial_weight
from megaxf.models.registry import family
from megaxf.models.weights import Weights

PROBE = 'def f(x):\n    return "Hello, world" + str(3.14) # 10% of Übergröße, 日本語 😀\n\tif not x: pass'
"""A text that tokenizers take apart in their own ways."""


class Extended(Weights):
    """The weights of a model with more rows in what is as long as the vocabulary."""

    def __init__(self, weights: Weights, config: Any, kind: str | None, seed: int) -> None:
        """config: of the larger model. kind: a value of init.vocabulary_extension. seed: of the run."""
        with torch.device("meta"):
            self._model = family(config.family).Model(config)
        self._weights, self._kind, self._seed = weights, kind, seed
        whole = {name: weight.shape for name, weight in self._model.named_parameters()}
        self.shapes = {name: whole[name] for name in weights.shapes}
        self._added: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.rows(name, 0, self.shapes[name][0])

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Rows of one tensor, fp32 where there are new ones among them."""
        known = self._weights.shapes[name][0]
        if first + count <= known:
            return self._weights.rows(name, first, count)
        if name not in self._added:
            self._added[name] = self._new_rows(name, self.shapes[name][0] - known)
        old = self._weights.rows(name, first, known - first).float() if first < known else self._added[name][:0]
        return torch.cat([old, self._added[name][max(first - known, 0) : first + count - known]])

    def _new_rows(self, name: str, count: int) -> torch.Tensor:
        """What the rows of new tokens start as.

        mean: the mean of the known rows, without noise. So a new token is as likely as a known one is on average, and
        the probabilities of known tokens fall by at most a factor of 1 + new/known, where rows of other sizes can take
        them all (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models",
        nlp.stanford.edu/~johnhew/vocab-expansion.html). Tokens part by their gradients.
        random: what a run from nothing would have there.
        """
        width = self.shapes[name][1:]
        if self._kind == "random":
            return initial_weight(self._model, name, self.shapes[name], self._seed)[-count:].clone()
        if self._kind == "zeros":
            return torch.zeros(count, *width)
        total = torch.zeros(width, dtype=torch.float64)
        for piece in self._weights.pieces(name):
            total += piece.sum(0, dtype=torch.float64)
        return (total / self._weights.shapes[name][0]).float().expand(count, *width)


def compare_tokenizers(data: Path, model: Path | None, path: Place) -> tuple[list[str], list[str]]:
    """(what forbids to train the model of `path` on data of the tokenizer in `data`, what should be known)."""
    if model is None or not any(data.glob("*")):
        missing = f"init.from = {path} has" if model is None else "the data has"
        return [], [f"{missing} no tokenizer: whether the ids of the data are the model's is not checked"]
    ours, theirs = load_tokenizer(data), load_tokenizer(model)
    if ours.digest == theirs.digest and ours.eod_id == theirs.eod_id:
        return [], []
    if ours.encode(PROBE) != theirs.encode(PROBE):
        return [
            f"the data was tokenised with another tokenizer than that of init.from = {path} (the same text gives other "
            f"ids), so its ids mean nothing to the model; prepare it anew: megaxf prepare --tokenizer {model}"
        ], []
    return [], list(_smaller_differences(ours, theirs, path))


def _smaller_differences(ours: Tokenizer, theirs: Tokenizer, path: Place) -> list[str]:
    found = []
    if ours.vocab_size != theirs.vocab_size:
        found.append(f"the data's tokenizer has {ours.vocab_size} ids and that of {path} {theirs.vocab_size}")
    if ours.eod_id != theirs.eod_id:
        found.append(
            f"documents of the data end with {ours.eod_token} (id {ours.eod_id}), those of {path} with "
            f"{theirs.eod_token} (id {theirs.eod_id}), which the model has to unlearn"
        )
    return found
