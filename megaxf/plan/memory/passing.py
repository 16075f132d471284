"""What is held for a moment within a step: in the loss and in one layer's backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from megaxf.plan.memory.activations import layer_terms
from megaxf.plan.memory.job import Job
from megaxf.plan.memory.rows import HEAD, LAYER, LOSS, Row, row
from megaxf.plan.memory.weights import key_value_heads

CHUNK = {"cpu": 2**24, "cuda": 2**28}
"""Logits that exist at one time (megaxf.models.loss)."""
CHUNK_ROWS = 256
"""Tokens of a chunk at least (megaxf.models.loss)."""
BLOCK = {"cpu": 2**18, "cuda": 2**28}
"""Logits that are widened to fp32 at one time (megaxf.models.loss)."""


def published_logits_bytes(tokens: int, vocab_size: int) -> int:
    """Logits kept whole for cross-entropy: the fp32 log-softmax of each token, 4 V (PyTorch's `cross_entropy`)."""
    return 4 * tokens * vocab_size


def loss_rows(job: Job) -> Iterator[Row]:
    """The chunked loss of the last stage: a chunk of logits, and the gradients that are made with it."""
    if not job.has_head:
        return
    e, width, tokens = job.element, (job.shape.hidden_size, "hidden"), (job.tokens, "tokens")
    vocab = -(-job.shape.vocab_size // job.tensor_parallel_size)
    entries = vocab, "entries"
    rows = min(job.tokens, max(CHUNK_ROWS, CHUNK[job.device] // vocab))
    yield row("loss", "hidden states", e, (job.shared_tokens, "tokens"), width, when=(LOSS,))
    if job.sequence_parallel:
        yield row("loss", "hidden states, gathered", e, tokens, width, when=(LOSS,))
    yield row("loss", "logits of a chunk", e, (rows, "tokens"), entries, when=(LOSS,))
    if e == 2:
        wide = min(rows, max(1, BLOCK[job.device] // vocab))
        yield row("loss", "logits in fp32", 4, (wide, "tokens"), entries, when=(LOSS,))
    yield row("loss", "gradient of the hidden states", e, tokens, width, when=(LOSS,))
    each = _head_gradient_bytes(e, chunks=-(-job.tokens // rows))
    yield row("loss", "gradient of the head, in sum", each, entries, width, when=(LOSS,))
    yield row("loss", "gradient of the head", e, entries, width, when=(HEAD,))


def _head_gradient_bytes(element: int, chunks: int) -> int:
    """Per element of the head, at the most: one product alone; or the sum in fp32 and the product that is added to it,
    where the first sum is made from a product in low precision."""
    if element == 4 or chunks == 1:
        return element
    return 8 if chunks == 2 else 6


def workspace_rows(job: Job) -> Iterator[Row]:
    """The backward pass of the final norm, whose gradients are in fp32, and that of a layer, at its widest in the MLP.

    What tensor-parallel ranks gather in a layer is there before or after that.
    """
    stream = job.shared_tokens * job.shape.hidden_size, "of tokens x hidden"
    if job.has_head:
        if job.shape.structure.layer_norm:
            yield row("workspace", "gradients of the final norm", 2, job.element, stream, when=(HEAD,))
        else:
            yield row("workspace", "gradients within the final norm", 5, 4, stream, when=(HEAD,))
    yield row("workspace", "what a layer makes again", _again_bytes(job), when=(LAYER,))
    width = job.tokens * job.shape.intermediate_size // job.tensor_parallel_size, "of tokens x width"
    yield row("workspace", "gradients within the MLP", 2, job.element, width, when=(LAYER,))
    yield row("workspace", "gradient of the residual stream", job.element, stream, when=(LAYER,))
    if job.context_parallel_size > 1:
        yield row("workspace", "gathered keys and values", _gathered_bytes(job), when=(LAYER,))


def _gathered_bytes(job: Job) -> int:
    """Keys and values of all context ranks with their gradients, in the attention's backward pass: what of them is
    beyond the MLP's tensors, which were given back before: two for each of its inner activations, two gradients."""
    keys = key_value_heads(job.shape, job.tensor_parallel_size) * job.shape.head_dim * job.context_parallel_size
    widths = 2 * job.shape.structure.mlp_matrices * job.shape.intermediate_size // job.tensor_parallel_size
    return max(0, job.element * job.tokens * (4 * keys - widths))


def _again_bytes(job: Job) -> int:
    """What a layer makes again at the most, less what the layers after it have given back by then."""
    most = 0
    for part in job.parts:
        given_back = 0
        for layer in reversed(part.layers):
            mode = job.recompute_of(layer)
            again = sum(layer_terms(job, "none").values()) if mode == "full" else 0
            if mode == "selective":
                # The norms are made again one by one, and less of them than of the MLP: silu and product, or GELU.
                made = job.shape.structure.mlp_matrices - 1
                again = made * job.element * job.tokens * job.shape.intermediate_size // job.tensor_parallel_size
            most = max(most, again - given_back)
            given_back += sum(layer_terms(job, mode).values())
    return most
