"""What a forward pass keeps for its backward pass, by kind of tensor.

Published for a LLaMA block with fused norms, in bf16, per token and layer (counted with PyTorch's saved-tensor hooks;
the method of Korthikanti et al., arXiv 2205.05198, for SwiGLU, grouped heads and FlashAttention):

    h (12 + 4 kv / a) + 8 f + 4 a      with h = a head_dim

Ours differs, term by term:
    none        + 8 h + 8: our norms keep their input in fp32 (4 h, not 2 h), the quotient (2 h) and 1 / rms (4)
    selective   - 4 f: of SwiGLU only gate and up are kept; norms keep their input and output, as the fused ones
    full        2 h: the layer's input alone
    compiled    + 8 - 2 f (none): torch.compile keeps of a norm what a fused one does, and makes silu again;
                - 4 h - 4 f (selective): and the norms' outputs
The functions below have the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from megaxf.plan.memory.job import Job
from megaxf.plan.memory.rows import HEAD, LOSS, PASSES, Row, row
from megaxf.plan.memory.weights import key_value_heads
from megaxf.plan.parameters import Shape

STATISTIC = 4
"""Bytes of an fp32 number that a norm or the attention keeps of a row."""
MESSAGES = 3
"""Hidden states, or their gradients, that DeepSpeed's pipeline holds on their way between stages."""


def published_bytes_per_token(shape: Shape, element: int = 2) -> int:
    """A LLaMA block with fused norms: h (12 + 4 kv / a) + 8 f + 4 a in bf16, per token; see the head of this module."""
    queries, keys = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    values = 4 * shape.hidden_size + 2 * queries + 2 * keys + 4 * shape.intermediate_size
    return element * values + STATISTIC * shape.num_attention_heads


def korthikanti_bytes(
    shape: Shape, tokens: int, sequence_length: int, *, ranks: int = 1, sequence: bool = False, recompute: str = "none"
) -> float:
    """A GPT-3 block with dropout, 2-byte activations and 1-byte masks: arXiv 2205.05198, table 2, per layer.

    sequence: whether the tensor-parallel ranks share the sequence. recompute: "none", "selective" (the attention core)
    or "full".
    """
    h, scores = shape.hidden_size, 5 * shape.num_attention_heads * sequence_length / shape.hidden_size
    if recompute == "full":
        return 2 * tokens * h
    split = 24 + (scores if recompute == "none" else 0)
    return tokens * h * ((10 + split) / ranks if sequence else 10 + split / ranks)


def layer_terms(job: Job, recompute: str) -> dict[str, int]:
    """Bytes that one layer keeps of one micro-batch, by kind of tensor.

    Outside of the matrices a tensor-parallel rank holds the whole width, of its share of the sequence where
    `sequence_parallel`; inside it holds its heads and its part of the MLP.
    """
    shape, e = job.shape, job.element
    stream = job.shared_tokens * shape.hidden_size
    if recompute == "full":
        return {"layer input": e * stream}
    terms = _attention_terms(job)
    terms |= _gelu_terms(job, recompute) if shape.structure.layer_norm else _swiglu_terms(job, recompute)
    if recompute == "none" or not job.compile or shape.structure.parallel_residual:
        terms["norm outputs"] = 2 * e * stream
    if job.dropout:
        terms["dropout masks"] = 2 * stream
    return terms


def _swiglu_terms(job: Job, recompute: str) -> dict[str, int]:
    """Of the norms and the MLP of Llama's layers."""
    e, stream = job.element, job.shared_tokens * job.shape.hidden_size
    width = job.tokens * job.shape.intermediate_size // job.tensor_parallel_size
    if recompute == "selective":
        return {"norm inputs": 2 * e * stream, "gate and up": 2 * e * width}
    if job.compile:
        statistics = STATISTIC * job.shared_tokens
        return {"norm inputs, 1 / rms": 2 * (e * stream + statistics), "gate, up and product": 3 * e * width}
    return {"norm inputs in fp32, quotients": 2 * norm_bytes(job), "gate, silu, up and product": 4 * e * width}


def _gelu_terms(job: Job, recompute: str) -> dict[str, int]:
    """Of the norms and the MLP of GPT's layers; parallel branches have one input, and one mean where compiled."""
    e, inputs = job.element, 1 if job.shape.structure.parallel_residual else 2
    width = job.tokens * job.shape.intermediate_size // job.tensor_parallel_size
    terms = {"norm inputs": inputs * e * job.shared_tokens * job.shape.hidden_size, "up": e * width}
    if recompute == "none":
        statistics = (inputs if job.compile else 2) * _layer_norm_statistics(job)
        terms |= {"norm means and deviations": statistics, "output of the GELU": e * width}
    return terms


def _layer_norm_statistics(job: Job) -> int:
    """Mean and deviation of each token; on a CPU in the dtype of the activations."""
    return 2 * (job.element if job.device == "cpu" else STATISTIC) * job.shared_tokens


def norm_bytes(job: Job) -> int:
    """Of one norm over the residual stream, beside its output: input in fp32, quotient, 1 / rms; of a LayerNorm, which
    is one kernel, input, mean and deviation."""
    if job.shape.structure.layer_norm:
        return job.element * job.shared_tokens * job.shape.hidden_size + _layer_norm_statistics(job)
    return job.shared_tokens * ((4 + job.element) * job.shape.hidden_size + STATISTIC)


def _attention_terms(job: Job) -> dict[str, int]:
    """q, k, v, output, and what the backend keeps."""
    shape, e, ranks = job.shape, job.element, job.tensor_parallel_size
    heads, kv_heads = shape.num_attention_heads // ranks, key_value_heads(shape, ranks)
    q, k = (job.tokens * count * shape.head_dim for count in (heads, kv_heads))
    terms = {}
    if shape.qk_norm:
        terms["norms of q and k"] = (e if job.compile else 4 + e) * (q + k) + STATISTIC * job.tokens * (
            heads + kv_heads
        )
    if job.attention_backend == "reference":
        return terms | _reference_attention(job, heads, q)
    # The fused GPU kernels that take a mask do not share keys between heads: k and v are repeated before.
    repeated = job.masked and job.device != "cpu" and heads != kv_heads
    terms["q, k, v"] = e * (q + 2 * (q if repeated else k))
    terms["attention output"] = e * q + STATISTIC * job.tokens * heads
    if job.masked:
        terms["mask, as added to scores"] = e * _mask_elements(job)
    return terms


def _reference_attention(job: Job, heads: int, q: int) -> dict[str, int]:
    """The formula as it stands: keys and values repeated for each query head, scores in memory, softmax in fp32."""
    e, scores = job.element, job.tokens * job.sequence_length * heads
    hidden, blind = _mask_elements(job), _mask_elements(job) // job.sequence_length
    return {
        "q, k, v": 3 * e * q,
        "attention output": e * q,
        "softmax": (4 + e) * scores,
        "masks": hidden + blind,
    }


def _mask_elements(job: Job) -> int:
    """One row's mask serves all rows but where each has its own documents."""
    rows = job.micro_batch_size if job.isolate_documents else 1
    return rows * job.sequence_length * job.sequence_length // job.context_parallel_size


def activation_rows(job: Job) -> Iterator[Row]:
    """The rows of all parts of the rank: layers x micro-batches in flight, and what is not a layer's."""
    copies: dict[str, int] = {}
    for part, held in zip(job.parts, job.held, strict=True):
        for layer in part.layers:
            mode = job.recompute_of(layer)
            copies[mode] = copies.get(mode, 0) + held
    for mode, count in copies.items():
        suffix = "" if mode == "none" else f" ({mode} recomputation)"
        for item, size in layer_terms(job, mode).items():
            yield row("activations", item + suffix, size, (count, "layers x micro-batches"), when=PASSES)
    if job.has_head:
        yield row("activations", "final norm", norm_bytes(job), when=(LOSS, HEAD))
    yield row(
        "activations", "rotary tables and masks", _shared_bytes(job), (sum(job.held), "micro-batches"), when=PASSES
    )
    if ends := _stage_ends(job):
        stream = job.shared_tokens * job.shape.hidden_size
        yield row("activations", "inputs and outputs of the stage", job.element, stream, (ends, "of them"), when=PASSES)


def _shared_bytes(job: Job) -> int:
    """Cosine and sine of each place, and the mask that all layers are given."""
    rows = job.micro_batch_size if job.isolate_documents else 1
    places = rows * job.sequence_length // job.context_parallel_size
    rotary = int(job.shape.head_dim * job.shape.structure.rotary)
    return job.element * places * rotary + (_mask_elements(job) if job.masked else 0)


def _stage_ends(job: Job) -> int:
    """Hidden states that a pipeline stage keeps beside its layers: what came in and what went out, of all micro-batches
    in flight, until their gradients are there, and messages on their way."""
    ends = 0
    for part, held in zip(job.parts, job.held, strict=True):
        ends += held * ((not part.first) + (not part.last))
    if any(not part.first for part in job.parts):
        ends += MESSAGES
    for before, after, held in zip(job.parts, job.parts[1:], job.held[1:], strict=False):
        if before.layers.stop == after.layers.start:  # What goes out of the one comes into the other.
            ends -= held
    return ends
