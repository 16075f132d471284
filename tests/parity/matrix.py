"""What the equality matrix is made of: a curve of 20 steps at some layout, and the comparison of two curves.

The sizes differ from each other and from multiples of the degrees where they may: 61 words are filled up for 2 and 4
ranks, rows have unequal numbers of targets, clipping is active in every step.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_mesh, tiny_run, train_steps

STEPS = 20
LEARNING_RATE = 3e-4
"""One process parts from itself, with another micro-batch or attention backend, by 1e-7; at 1e-3 by 3e-5 in the norm,
since weights of such a model then reach where the norm follows their last digits."""
MODEL = {"hidden_size": 36, "intermediate_size": 44, "num_attention_heads": 8, "num_key_value_heads": 4}
MODELS = {
    "untied": {},
    "four layers": {"num_hidden_layers": 4},
    "five layers": {"num_hidden_layers": 5},
    "five layers, tied": {"num_hidden_layers": 5, "tie_word_embeddings": True},
    "tied": {"tie_word_embeddings": True},
    "large": {"initializer_range": 0.15},
    "one kv head": {"num_key_value_heads": 1, "qk_norm": True, "attention_bias": True},
    "one kv head, five layers": {
        "num_key_value_heads": 1,
        "qk_norm": True,
        "attention_bias": True,
        "num_hidden_layers": 5,
    },
}


GPT = {
    "vocab_size": 61,
    "hidden_size": 40,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
FAMILIES = {
    "gpt2": GPT | {"family": "gpt2"},
    "gpt2, untied": GPT | {"family": "gpt2", "tie_word_embeddings": False},
    "neox": GPT | {"family": "gpt_neox", "rotary_pct": 0.6},
    "neox, one after the other, tied": GPT
    | {"family": "gpt_neox", "use_parallel_residual": False, "tie_word_embeddings": True, "rotary_pct": 0.2},
}
"""Models of other families than Llama's."""


def matrix_run(model: str = "untied", **sections: dict[str, Any]) -> Any:
    """The run of one cell; `sections` override."""
    train = {"gradient_clip": 0.7, "z_loss": 1e-3} | sections.pop("train", {})
    # The softmax does not see what is added to all keys alike, so that gradients of key biases are rounding. With a
    # small eps Adam would make steps of it.
    eps = 1e-2 if model in FAMILIES else 1e-6
    settings = FAMILIES[model] if model in FAMILIES else MODEL | MODELS[model]
    return tiny_run(settings, train=train, optimizer={"eps": eps}, **sections)


def curve(
    model: str = "untied", steps: int = STEPS, **sections: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Numbers [steps + 1, 4]: loss, z-loss, norm, tokens of each step, then those of an evaluation; final weights."""
    run = matrix_run(model, **sections)
    engine = tiny_engine(run)
    results = [list(result)[:4] for result in train_steps(engine, run, range(steps), LEARNING_RATE)]
    weights = {name: tensors["master"] for name, tensors in read_all(engine).items()}
    return torch.tensor([*results, evaluation(engine, run)], dtype=torch.float64), weights


def evaluation(engine: Any, run: Any) -> list[float]:
    """The loss on the batch of step 99, as the training loop makes it: sums over all ranks that see other tokens."""
    from megaxf.parallel.collectives import sum_numbers

    mesh = tiny_mesh(run)
    nll, tokens = engine.evaluate(own_rows(global_batch(99, run), mesh))
    nll, tokens = sum_numbers([nll, tokens], mesh.replicas, "cpu")
    return [nll / tokens, 0.0, 1.0, tokens]


def assert_same(got: Any, expected: Any, tolerance: float) -> None:
    """All numbers of two curves within a relative tolerance."""
    (numbers, weights), (expected_numbers, expected_weights) = got, expected
    loss, z_loss, norm, tokens = numbers.T
    expected_loss, expected_z_loss, expected_norm, expected_tokens = expected_numbers.T
    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=0)
    torch.testing.assert_close(norm, expected_norm, rtol=tolerance, atol=0)
    # The difference of two fp32 sums of the size of the loss, so bounded beside the loss.
    torch.testing.assert_close(z_loss, expected_z_loss, rtol=0, atol=float(tolerance * loss.max()))
    assert list(weights) == list(expected_weights)
    for name, weight in weights.items():
        scale = expected_weights[name].norm().clamp(min=LEARNING_RATE)
        distance = (weight - expected_weights[name]).norm() / scale
        assert distance <= tolerance, f"{name}: {distance:.1e}"
