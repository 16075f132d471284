"""Architectures by their numbers alone."""

from megaxf.models.llama_config import Config


def shape(vocab, hidden, layers, ffn, heads, kv_heads, **more):
    return Config(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=131072,
        **more,
    )
