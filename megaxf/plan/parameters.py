"""How many parameters a decoder has, by what they do."""

from __future__ import annotations

from typing import NamedTuple, Protocol


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


class ParameterCount(NamedTuple):
    """Counts of parameters; total = embedding + non_embedding."""

    total: int
    """All that is stored and trained; a tied table once."""
    embedding: int
    """The embedding table, and the output matrix where it is another one."""
    non_embedding: int
    """The layers and the final norm."""
    matmul: int
    """Those that a token is multiplied with: the layers' matrices and the output matrix (tied or not), neither the
    look-up nor norms and biases."""


def count(shape: Shape) -> ParameterCount:
    """The parameters of a model of the Llama family."""
    table = shape.vocab_size * shape.hidden_size
    matrices = shape.num_hidden_layers * layer_matrices(shape)
    norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size
    if shape.qk_norm:
        norms += 2 * shape.num_hidden_layers * shape.head_dim
    heads_with_bias = shape.num_attention_heads + 2 * shape.num_key_value_heads if shape.attention_bias else 0
    biases = shape.num_hidden_layers * heads_with_bias * shape.head_dim
    embedding = table if shape.tie_word_embeddings else 2 * table
    non_embedding = matrices + norms + biases
    return ParameterCount(embedding + non_embedding, embedding, non_embedding, matrices + table)


def layer_matrices(shape: Shape) -> int:
    """Elements of one layer's matrices: the attention's, and the three of SwiGLU."""
    return attention_matrices(shape) + 3 * shape.hidden_size * shape.intermediate_size


def attention_matrices(shape: Shape) -> int:
    """Elements of one layer's q and o, k and v."""
    return 2 * shape.hidden_size * shape.head_dim * (shape.num_attention_heads + shape.num_key_value_heads)
