"""A tokenizer under GGUF's keys, so that llama.cpp gives the same ids.

| tokenizer                                              | tokenizer.ggml.model |
|--------------------------------------------------------|----------------------|
| sentencepiece BPE, and its form as a tokenizer.json    | llama                |
| sentencepiece unigram                                  | t5                   |
| byte-level BPE (tokenizer.json)                        | gpt2                 |
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from data_pipeline.tokenizer.sentencepiece import SPACE_MARK, SentencePieceTokenizer, parse_model
from megaxf.convert.errors import ConvertError
from megaxf.convert.interface import Trained

if TYPE_CHECKING:
    from gguf import GGUFWriter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""gguf.TokenType, which are sentencepiece's kinds."""
UNIGRAM, BPE = 1, 2
BYTE_NAME = re.compile(r"<0x[0-9A-F]{2}>")
ENDS = ("eos", "eot", "eom")
"""The keys whose tokens end a text in llama.cpp."""

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
PRE_TOKENIZERS: dict[tuple[tuple[str, ...], ...], str] = {
    (("words", GPT2_WORDS),): "gpt-2",
    (("digits",), ("words", GPT2_WORDS)): "starcoder",
    (("words", LLAMA3_WORDS),): "smaug-bpe",
    (("words", QWEN2_WORDS),): "qwen2",
}
"""How a tokenizer.json cuts a text into words, and llama.cpp's name for it."""
IGNORING_MERGES = {"smaug-bpe": "llama-bpe"}
"""The same with words taken whole where the vocabulary has them (`ignore_merges`)."""


def describe_tokenizer(writer: GGUFWriter, model: Trained) -> list[str]:
    """Tokens with scores, kinds and merges, and the special ids; gives what a user should know, a sentence each.

    Raises ConvertError where llama.cpp would cut a text otherwise, or the tokenizer does not fit the vocabulary.
    """
    if model.tokenizer is None:
        writer.add_tokenizer_model("none")
        return []
    tokenizer = load_tokenizer(model.tokenizer)
    size = model.config.vocab_size
    if tokenizer.vocab_size > size:
        raise ConvertError(
            f"{model.tokenizer}: the tokenizer has {tokenizer.vocab_size} tokens and model.vocab_size = {size}"
        )
    notes, byte_level = [], False
    if isinstance(tokenizer, SentencePieceTokenizer):
        notes = _sentencepiece(writer, parse_model(tokenizer.model_bytes), size)
    else:
        byte_level = _tokenizer_json(writer, model.tokenizer, size)
    _special(writer, model, tokenizer, byte_level)
    return notes


def _special(writer: GGUFWriter, model: Trained, tokenizer: Tokenizer, with_merges: bool) -> None:
    """What begins and ends a text, and the chat template. Raises ConvertError for more ends than GGUF has keys for."""
    import gguf

    assert model.tokenizer is not None
    ends = model.eos_ids or [tokenizer.eod_id]
    if len(ends) > len(ENDS):
        raise ConvertError(f"{len(ends)} tokens end a text ({ends}), and GGUF has keys for {len(ENDS)}")
    special = gguf.SpecialVocab(model.tokenizer, load_merges=with_merges, n_vocab=model.config.vocab_size)
    # Where nothing marks a beginning, the end of another text does: llama.cpp would take token 1.
    bos_id = tokenizer.eod_id if tokenizer.bos_id is None else tokenizer.bos_id
    special.special_token_ids |= {"bos": bos_id, **dict(zip(ENDS, ends, strict=False))}
    special.add_special_token = {"bos": False, "eos": False} | special.add_special_token
    special.add_to_gguf(writer, quiet=True)


def _pad(tokens: list[str], kinds: list[int], size: int) -> None:
    """Rows of the table that no token has get a name each, as llama.cpp's own converter gives them."""
    tokens += [f"[PAD{index}]" for index in range(len(tokens), size)]
    kinds += [UNUSED] * (size - len(kinds))


def _sentencepiece(writer: GGUFWriter, proto: Any, size: int) -> list[str]:
    normalizer, kind = proto.normalizer_spec, proto.trainer_spec.model_type
    if kind not in (UNIGRAM, BPE):
        raise ConvertError("this sentencepiece model is neither BPE nor unigram: llama.cpp has no such kind")
    if kind == BPE and (normalizer.precompiled_charsmap or normalizer.remove_extra_whitespaces):
        raise ConvertError(
            f"this sentencepiece model changes a text before it cuts it (rule {normalizer.name}, extra whitespace "
            f"removed: {normalizer.remove_extra_whitespaces}), which llama.cpp does not do for BPE"
        )
    tokens, kinds = [piece.piece for piece in proto.pieces], [piece.type for piece in proto.pieces]
    scores = [piece.score for piece in proto.pieces]
    _write_pieces(writer, "llama" if kind == BPE else "t5", tokens, scores, kinds, size)
    writer.add_add_space_prefix(normalizer.add_dummy_prefix)
    writer.add_unk_token_id(kinds.index(UNKNOWN))
    if kind == BPE:
        return []
    writer.add_remove_extra_whitespaces(normalizer.remove_extra_whitespaces)
    if normalizer.precompiled_charsmap:
        writer.add_precompiled_charsmap(normalizer.precompiled_charsmap)
    lost = "llama.cpp knows no byte tokens of unigram tokenizers: there a character without a token is unknown"
    return [lost] if BYTE in kinds else []


def _write_pieces(
    writer: GGUFWriter, kind: str, tokens: list[str], scores: list[float], kinds: list[int], size: int
) -> None:
    _pad(tokens, kinds, size)
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores + [-10000.0] * (size - len(scores)))
    writer.add_token_types(kinds)


def _tokenizer_json(writer: GGUFWriter, folder: Path, size: int) -> bool:
    """Gives whether it is a byte-level BPE, and so needs its merges."""
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = content["model"]
    if model["type"] != "BPE":
        raise ConvertError(
            f"{folder / 'tokenizer.json'}: a {model['type']} tokenizer of this form is not written to GGUF; convert "
            "from the checkpoint, which has the sentencepiece model"
        )
    added = {token["id"]: token for token in content.get("added_tokens", [])}
    tokens, kinds = [], []
    by_id = {index: token for token, index in model["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    for index in range(max(by_id) + 1):
        tokens.append(by_id.get(index, f"[PAD{index}]"))
        special = added.get(index, {}).get("special")
        kinds.append(
            UNUSED if index not in by_id else NORMAL if special is None else CONTROL if special else USER_DEFINED
        )
    if model.get("byte_fallback"):
        _pieces_of_merges(writer, content, tokens, kinds, size)
        return False
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(content))
    _pad(tokens, kinds, size)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    return True


def _pieces_of_merges(
    writer: GGUFWriter, content: dict[str, Any], tokens: list[str], kinds: list[int], size: int
) -> None:
    """A sentencepiece BPE that has become a tokenizer.json: what is merged first had the best score."""
    steps = _steps(content["normalizer"], "normalizers") + _steps(content["pre_tokenizer"], "pretokenizers")
    unlike = [step["type"] for step in steps if step["type"] not in ("Prepend", "Replace", "Metaspace")]
    if unlike:
        raise ConvertError(f"tokenizer.json: llama.cpp has no step {', '.join(unlike)} for a BPE with byte tokens")
    prefix = any(step["type"] == "Prepend" or step.get("prepend_scheme") in ("always", "first") for step in steps)
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(content["model"]["merges"]):
        ranks.setdefault("".join(pair.split(" ", 1) if isinstance(pair, str) else pair), rank)
    scores = [-float(ranks.get(token, len(ranks))) for token in tokens]
    for index, token in enumerate(tokens):
        if kinds[index] in (NORMAL, CONTROL) and token == content["model"].get("unk_token"):
            kinds[index] = UNKNOWN
            writer.add_unk_token_id(index)
        elif kinds[index] == NORMAL:
            kinds[index] = BYTE if BYTE_NAME.fullmatch(token) else NORMAL
            tokens[index] = token.replace(" ", SPACE_MARK)
    _write_pieces(writer, "llama", tokens, scores, kinds, size)
    writer.add_add_space_prefix(prefix)


def _steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, one after another."""
    if part is None:
        return []
    return [step for one in part[inner] for step in _steps(one, inner)] if part["type"] == "Sequence" else [part]


def _pre_tokenizer(content: dict[str, Any]) -> str:
    """llama.cpp's name for how a byte-level tokenizer cuts a text. Raises ConvertError where it has none."""
    unlike = [step["type"] for step in _steps(content["normalizer"], "normalizers") if step["type"] != "NFC"]
    cuts: list[tuple[str, ...]] = []
    for step in _steps(content["pre_tokenizer"], "pretokenizers"):
        pattern = step.get("pattern", {}).get("Regex")
        if step["type"] == "ByteLevel" and not step["add_prefix_space"]:
            cuts += [("words", GPT2_WORDS)] if step["use_regex"] else []
        elif (step["type"], step.get("individual_digits")) == ("Digits", True) or pattern == r"\p{N}":
            cuts.append(("digits",))
        elif pattern and (step["behavior"], step["invert"]) == ("Isolated", False):
            cuts.append(("words", pattern))
        else:
            unlike.append(step["type"])
    name = PRE_TOKENIZERS.get(tuple(cuts))
    if unlike or name is None:
        raise ConvertError(
            f"tokenizer.json: llama.cpp is not known to cut a text as {[*unlike, *cuts]} does; known are "
            f"{', '.join(PRE_TOKENIZERS.values())}"
        )
    return IGNORING_MERGES.get(name, name) if content["model"].get("ignore_merges") else name
