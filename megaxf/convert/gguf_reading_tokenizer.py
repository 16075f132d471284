"""The tokenizer of a GGUF file as the files that `load_tokenizer` opens: what `gguf_tokenizer` does, undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from data_pipeline.tokenizer.base import write_settings
from data_pipeline.tokenizer.sentencepiece import parse_model
from megaxf.convert.errors import ConvertError
from megaxf.convert.gguf_tokenizer import (
    BPE,
    BYTE,
    CONTROL,
    ENDS,
    GPT2_WORDS,
    IGNORING_MERGES,
    NORMAL,
    PRE_TOKENIZERS,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
)

Value = Callable[..., Any]
"""A setting of the file by its key, and what it is where the file has it not."""
PREFIX = "tokenizer.ggml."


def eos_ids(value: Value) -> list[int]:
    """The tokens that end a text."""
    found = [value(f"{PREFIX}{end}_token_id") for end in ENDS]
    return [token for token in found if token is not None]


def _bos_id(value: Value) -> int | None:
    """What begins a text; None where that is the end of another, which is what stands for no beginning."""
    bos: int | None = value(f"{PREFIX}bos_token_id")
    return None if bos in eos_ids(value) else bos


def write_tokenizer(value: Value, folder: Path, where: str) -> bool:
    """Write the files; gives whether the file has a tokenizer. Raises ConvertError where it is of an unknown kind."""
    kind = value(f"{PREFIX}model", "none")
    if kind == "none":
        return False
    tokens, ends = value(f"{PREFIX}tokens", []), eos_ids(value)
    if kind not in ("llama", "t5", "gpt2") or not tokens or not ends:
        raise ConvertError(f"{where}: a tokenizer of kind {kind!r} with {len(tokens)} tokens, ends {ends}, is not read")
    if max(ends) >= len(tokens):
        raise ConvertError(f"{where}: texts end with token {max(ends)}, and there are {len(tokens)} tokens")
    kinds = list(value(f"{PREFIX}token_type", [NORMAL] * len(tokens)))
    if kind == "gpt2":
        _byte_level(value, tokens, kinds, where).save(str(folder / "tokenizer.json"))
    else:
        (folder / "tokenizer.model").write_bytes(_sentencepiece(value, kind, tokens, kinds))
    write_settings(folder, tokens[ends[0]])
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[ends[0]]}
    if (bos := _bos_id(value)) is not None:
        config |= {"bos_token": tokens[bos], "add_bos_token": value(f"{PREFIX}add_bos_token", kind == "llama")}
    if template := value("tokenizer.chat_template"):
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return True


def _sentencepiece(value: Value, kind: str, tokens: list[str], kinds: list[int]) -> bytes:
    """A sentencepiece model; rows of the table that have no token are left out at its end."""
    proto, scores = parse_model(b""), value(f"{PREFIX}scores", [0.0] * len(tokens))
    count = max(index for index, one in enumerate(kinds) if one != UNUSED) + 1
    for token, score, one in zip(tokens[:count], scores, kinds, strict=False):
        proto.pieces.add(piece=token, score=score, type=one)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type = BPE if kind == "llama" else UNIGRAM
    trainer.vocab_size, trainer.byte_fallback = count, BYTE in kinds
    ids = {"unk": value(f"{PREFIX}unknown_token_id"), "bos": _bos_id(value), "eos": eos_ids(value)[0]}
    for name, token_id in ids.items():
        if token_id is not None:
            setattr(trainer, f"{name}_piece", tokens[token_id])
            setattr(trainer, f"{name}_id", token_id)
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = value(f"{PREFIX}add_space_prefix", True)
    normalizer.remove_extra_whitespaces = value(f"{PREFIX}remove_extra_whitespaces", False)
    normalizer.precompiled_charsmap = bytes(value(f"{PREFIX}precompiled_charsmap", b""))
    model: bytes = proto.SerializeToString()
    return model


def _byte_level(value: Value, tokens: list[str], kinds: list[int], where: str) -> Tokenizer:
    """A tokenizer.json of a byte-level BPE. Raises ConvertError where its way to cut a text is not known."""
    name: str = value(f"{PREFIX}pre", "default")
    ignoring = {new: old for old, new in IGNORING_MERGES.items()}
    cuts = {known: steps for steps, known in PRE_TOKENIZERS.items()}.get(ignoring.get(name, name))
    if cuts is None:
        known = ", ".join((*PRE_TOKENIZERS.values(), *ignoring))
        raise ConvertError(f"{where}: {PREFIX}pre = {name!r} is a way to cut a text that is not known here: {known}")
    vocabulary = {token: index for index, token in enumerate(tokens) if kinds[index] != UNUSED}
    merges = [tuple(pair.split(" ", 1)) for pair in value(f"{PREFIX}merges", [])]
    made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in ignoring))
    steps: list[Any] = []
    for step, *words in cuts:
        if step == "digits":
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        elif words[0] != GPT2_WORDS:
            steps.append(pre_tokenizers.Split(Regex(words[0]), "isolated"))
    own = ("words", GPT2_WORDS) in cuts
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    for kind, add in ((CONTROL, made.add_special_tokens), (USER_DEFINED, made.add_tokens)):
        whole = [token for token, one in zip(tokens, kinds, strict=True) if one == kind]
        add([AddedToken(token, special=kind == CONTROL, normalized=False) for token in whole])
    return made
