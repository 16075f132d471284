"""The same training step in other people's code: transformers, litgpt, and the bare matrix products.

Each maker returns a function that does one whole step: forward, loss, backward, AdamW (fused).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Step = Callable[[], object]


@dataclass(frozen=True)
class Shape:
    """One benchmark case; sizes as in the model's configuration, `batch` sequences of `sequence` tokens."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    sequence: int
    batch: int
    dtype: torch.dtype

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.batch * self.sequence

    def inputs(self) -> tuple[Tensor, Tensor]:
        """Random tokens and labels, int64 [batch, seq]."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.vocab, (self.batch, self.sequence + 1), generator=generator)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def transformers_step(shape: Shape, compiled: bool, autocast: bool = False) -> Step:
    """transformers' Llama with SDPA and its own loss; weights in the shape's dtype, or fp32 under autocast."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads, max_position_embeddings=shape.sequence,
        tie_word_embeddings=False, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.float32 if autocast else shape.dtype).train()
    optimizer, (tokens, labels) = _optimizer(model), shape.inputs()
    forward = torch.compile(model) if compiled else model

    def step() -> float:
        # shift_labels: the labels are shifted already, so that every contender counts the same targets.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = forward(input_ids=tokens, labels=labels, shift_labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def litgpt_step(shape: Shape, compiled: bool) -> Step:
    """litgpt's GPT in its Llama form with its own chunked cross-entropy."""
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    torch.manual_seed(0)
    config = Config(
        name="bench", block_size=shape.sequence, vocab_size=shape.vocab, padded_vocab_size=shape.vocab,
        n_layer=shape.layers, n_head=shape.heads, n_embd=shape.hidden, n_query_groups=shape.heads,
        rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=shape.ffn,
    )  # fmt: skip
    model = GPT(config).to(shape.dtype).train()
    optimizer, (tokens, labels) = _optimizer(model), shape.inputs()
    forward = torch.compile(model) if compiled else model

    def step() -> float:
        loss = chunked_cross_entropy(forward(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def matrix_products(shape: Shape) -> Step:
    """The limit: only the matrix products of the step (each forward product, and its two backward ones)."""
    n, h, f, head = shape.tokens, shape.hidden, shape.ffn, shape.hidden // shape.heads
    pairs = [(h, h)] * 4 + [(h, f)] * 2 + [(f, h)]
    weights = [torch.randn(outs, ins, dtype=shape.dtype) for ins, outs in pairs]
    values = {size: torch.randn(n, size, dtype=shape.dtype) for size in {h, f, shape.vocab}}
    head_weight = torch.randn(shape.vocab, h, dtype=shape.dtype)
    queries = torch.randn(shape.batch * shape.heads, shape.sequence, head, dtype=shape.dtype)
    scores = torch.randn(shape.batch * shape.heads, shape.sequence, shape.sequence, dtype=shape.dtype)

    def linear(weight: Tensor) -> None:
        x, g = values[weight.shape[1]], values[weight.shape[0]]
        torch.mm(x, weight.t())
        torch.mm(g, weight)
        torch.mm(g.t(), x)

    def step() -> None:
        for _ in range(shape.layers):
            for weight in weights:
                linear(weight)
            for _ in range(3):  # scores and values forward, and the two products of each backward
                torch.bmm(queries, queries.transpose(1, 2))
                torch.bmm(scores, queries)
        linear(head_weight)

    return step
