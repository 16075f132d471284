"""How many parameters a decoder has, by what they do."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from megaxf.plan.errors import PlanError

COUNTS = {"total": "total", "non-embedding": "non_embedding", "matrices with the head": "matmul"}
"""What a law counts as N -> the field of a ParameterCount; other counts are near the last."""
USUAL_LENGTH = 4096


class Structure(NamedTuple):
    """What the decoders of a family are made of, beside the sizes of their parts; by default as Llama's."""

    mlp_matrices: int = 3
    """3: gate, up and down (SwiGLU); 2: up and down."""
    layer_norm: bool = False
    """Whether norms have a bias beside their weight (LayerNorm, not RMSNorm)."""
    output_bias: bool = False
    """Whether the attention's output matrix has a bias."""
    mlp_bias: bool = False
    """Whether the MLP's matrices have biases."""
    fused_heads: bool = False
    """Whether q, k and v are one matrix."""
    parallel_residual: bool = False
    """Whether attention and MLP take the same input."""
    rotary: float = 1.0
    """Share of a head's dimensions that are rotary."""
    learned_positions: int = 0
    """Rows of the table of positions that is added to the embeddings; 0 where there is none."""


class Shape(Protocol):
    """The sizes that the planner needs, under the names of a model's Config."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def intermediate_size(self) -> int:
        """Width of the MLP."""

    @property
    def num_hidden_layers(self) -> int:
        """Decoder layers."""

    @property
    def num_attention_heads(self) -> int:
        """Query heads of a layer."""

    @property
    def num_key_value_heads(self) -> int:
        """Key/value heads of a layer."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def tie_word_embeddings(self) -> bool:
        """Whether the embedding table is the output matrix."""

    @property
    def attention_bias(self) -> bool:
        """Whether q, k and v have biases."""

    @property
    def qk_norm(self) -> bool:
        """Whether the heads of q and k are normed."""

    @property
    def sliding_window(self) -> int | None:
        """Keys that a query sees; all earlier ones where None."""

    @property
    def structure(self) -> Structure:
        """What it is made of."""


class ParameterCount(NamedTuple):
    """Counts of parameters; total = embedding + non_embedding."""

    total: int
    """All that is stored and trained; a tied table once."""
    embedding: int
    """The tables of tokens and of positions, and the output matrix where it is another one."""
    non_embedding: int
    """The layers and the final norm."""
    matmul: int
    """Those that a token is multiplied with: the layers' matrices and the output matrix (tied or not), neither the
    look-up nor norms and biases."""


def count(shape: Shape) -> ParameterCount:
    """The parameters of a model."""
    table = shape.vocab_size * shape.hidden_size
    matrices = shape.num_hidden_layers * layer_matrices(shape)
    norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size * (2 if shape.structure.layer_norm else 1)
    vectors = norms + shape.num_hidden_layers * _layer_vectors(shape)
    embedding = (1 if shape.tie_word_embeddings else 2) * table + shape.structure.learned_positions * shape.hidden_size
    non_embedding = matrices + vectors
    return ParameterCount(embedding + non_embedding, embedding, non_embedding, matrices + table)


def layer_matrices(shape: Shape) -> int:
    """Elements of one layer's matrices: the attention's and the MLP's."""
    return attention_matrices(shape) + shape.structure.mlp_matrices * shape.hidden_size * shape.intermediate_size


def _layer_vectors(shape: Shape) -> int:
    """Elements of one layer's biases on matrices, and of the norms of q and k."""
    structure, vectors = shape.structure, 0
    if shape.attention_bias:
        vectors += (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim
    if structure.output_bias:
        vectors += shape.hidden_size
    if structure.mlp_bias:
        vectors += (structure.mlp_matrices - 1) * shape.intermediate_size + shape.hidden_size
    return vectors + (2 * shape.head_dim if shape.qk_norm else 0)


def attention_matrices(shape: Shape) -> int:
    """Elements of one layer's q and o, k and v."""
    return 2 * shape.hidden_size * shape.head_dim * (shape.num_attention_heads + shape.num_key_value_heads)


def usual_length(shape: Shape) -> int:
    """Tokens of a sequence where none are given: 4,096, or as many as the model has positions for."""
    return min(USUAL_LENGTH, getattr(shape, "max_position_embeddings", USUAL_LENGTH))


def check_length(shape: Shape, length: int) -> None:
    """Raises PlanError where a model has no positions for so long a sequence; a bare Shape has as many as there are."""
    most = getattr(shape, "max_position_embeddings", length)
    if length > most:
        raise PlanError(
            f"--sequence-length = {length:,} is more than model.max_position_embeddings = {most:,}; use at most that, "
            "or a model file with more"
        )
