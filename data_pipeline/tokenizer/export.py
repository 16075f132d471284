"""A tokenizer as the files that `transformers.AutoTokenizer` opens, with the same ids and no code of ours.

A sentencepiece model becomes a tokenizer.json. Two things make the ids equal for every text:

- Pieces are stored with plain spaces. Sentencepiece marks spaces with U+2581, and so cannot tell a space from that
  character; where our tokenizer can (see SentencePieceTokenizer), the file here does too.
- Sentencepiece's BPE joins the pair that makes the best piece, wherever the piece is cut. A tokenizer.json lists pairs
  by rank, so every cut of a piece into two known ones is listed, best piece first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from data_pipeline.errors import DataError
from data_pipeline.tokenizer.base import load_tokenizer, write_settings
from data_pipeline.tokenizer.sentencepiece import SPACE_MARK, SentencePieceTokenizer, parse_model

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of sentencepiece's pieces."""
UNIGRAM, BPE = 1, 2
BYTE_NAMES = Regex("<(?=0x[0-9A-F]{2}>)")
"""The opening of a byte token's name, should a text contain one."""


def export_tokenizer(source: str | Path, folder: str | Path, *, max_length: int) -> dict[str, int | None]:
    """Write tokenizer.json and tokenizer_config.json into a folder; gives bos_, eos_ and pad_token_id as these say.

    source: what `load_tokenizer` opens. max_length: the model's longest sequence, in tokens.
    The end-of-document token becomes eos, and pad where there is none. Raises DataError where the tokenizer cannot be
    read or expressed.
    """
    tokenizer, folder = load_tokenizer(source), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if isinstance(tokenizer, SentencePieceTokenizer):
        tokenizer_json(tokenizer.model_bytes, tokenizer.keeps_space_mark).save(str(folder / "tokenizer.json"))
        write_settings(folder, tokenizer.eod_token)
    else:
        tokenizer.save(folder)
        config |= _read_config(folder / "tokenizer_config.json", source)
        config.pop("auto_map", None)
    for kind in ("bos", "pad"):
        token = config.pop(f"{kind}_token", None)
        token = token.get("content") if isinstance(token, dict) else token
        if token is not None:
            config[f"{kind}_token"] = token
    config["eos_token"] = tokenizer.eod_token
    config.setdefault("pad_token", tokenizer.eod_token)
    config.setdefault("model_max_length", max_length)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=1, ensure_ascii=False, sort_keys=True), encoding="utf-8"
    )
    return _special_ids(folder, config)


def _read_config(copy: Path, source: str | Path) -> dict[str, Any]:
    try:
        config = json.loads(copy.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{copy.name} is not JSON: {error}", source) from None
    if not isinstance(config, dict):
        raise DataError(f"{copy.name} holds a {type(config).__name__}, not settings", source)
    return config


def _special_ids(folder: Path, config: dict[str, Any]) -> dict[str, int | None]:
    written = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids: dict[str, int | None] = {}
    for kind in ("bos", "eos", "pad"):
        token = config.get(f"{kind}_token")
        ids[f"{kind}_token_id"] = None if token is None else written.token_to_id(token)
    return ids


def tokenizer_json(model: bytes, keeps_space_mark: bool) -> tokenizers.Tokenizer:
    """The tokenizer of a sentencepiece model's bytes.

    keeps_space_mark: whether U+2581 in a text is told from a space. Raises DataError for word and character models.
    """
    proto = parse_model(model)
    kind = proto.trainer_spec.model_type
    if kind not in (UNIGRAM, BPE):
        raise DataError("this sentencepiece model is neither BPE nor unigram: tokenizer.json has no such kind")
    pieces = [(piece.piece.replace(SPACE_MARK, " "), piece.score, piece.type) for piece in proto.pieces]
    fallback = any(kind == BYTE for _, _, kind in pieces)
    result = tokenizers.Tokenizer(_bpe(pieces, fallback) if kind == BPE else _unigram(pieces, fallback))
    result.normalizer = _normalizer(proto.normalizer_spec, keeps_space_mark)
    if kind == UNIGRAM and fallback:
        # A text that spells the name of a byte token must not be cut into that token.
        result.pre_tokenizer = pre_tokenizers.Split(BYTE_NAMES, "merged_with_previous")
    strip = [decoders.Strip(" ", 1, 0)] if proto.normalizer_spec.add_dummy_prefix else []
    result.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *strip])
    result.add_special_tokens([_whole(piece, True) for piece, _, kind in pieces if kind == CONTROL])
    result.add_tokens([_whole(piece, False) for piece, _, kind in pieces if kind == USER_DEFINED])
    return result


def _whole(piece: str, special: bool) -> AddedToken:
    return AddedToken(piece, special=special, normalized=False)


Pieces = list[tuple[str, float, int]]


def _unknown(pieces: Pieces) -> int:
    return next(index for index, (_, _, kind) in enumerate(pieces) if kind == UNKNOWN)


def _bpe(pieces: Pieces, fallback: bool) -> models.BPE:
    vocabulary = {piece: index for index, (piece, _, _) in enumerate(pieces)}
    unknown = pieces[_unknown(pieces)][0]
    return models.BPE(
        vocabulary, list(_merges(pieces)), unk_token=unknown, fuse_unk=not fallback, byte_fallback=fallback
    )


def _merges(pieces: Pieces) -> Iterator[tuple[str, str]]:
    """Every cut of every piece into two, best piece first.

    Of the cuts of one piece, the longest left part comes first: where two overlap in a text, sentencepiece takes the
    one further left.
    """
    known = {piece for piece, _, kind in pieces if kind in (NORMAL, USER_DEFINED, UNUSED)}
    normal = [(score, piece) for piece, score, kind in pieces if kind == NORMAL]
    for _, piece in sorted(normal, key=lambda entry: -entry[0]):
        for cut in range(len(piece) - 1, 0, -1):
            if piece[:cut] in known and piece[cut:] in known:
                yield piece[:cut], piece[cut:]


def _unigram(pieces: Pieces, fallback: bool) -> models.Unigram:
    # The lowest score fixes the cost of unknown characters, so the others must not lie below the normal ones.
    lowest = min(score for _, score, kind in pieces if kind == NORMAL)
    scored = [(piece, score if kind == NORMAL else lowest) for piece, score, kind in pieces]
    # Every piece is found where it stands in a text. This one must not be: no text has a NUL before it.
    scored[_unknown(pieces)] = (f"\0{pieces[_unknown(pieces)][0]}", lowest)
    return models.Unigram(scored, _unknown(pieces), fallback)


def _normalizer(spec: Any, keeps_space_mark: bool) -> normalizers.Sequence:
    """What sentencepiece does to a text before it cuts it."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if not keeps_space_mark:
        steps.append(normalizers.Replace(SPACE_MARK, " "))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence(steps)
