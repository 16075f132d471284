"""What a tokenizer's own rule puts before each text, which models that others have trained expect.

megaxf trains without such a mark (documents follow the end of others), so this is for models that come from elsewhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from data_pipeline.tokenizer.base import load_tokenizer

SETTINGS = "tokenizer_config.json"


def opening_id(folder: Path) -> int | None:
    """The token, as transformers would put it; None where there is none.

    `add_bos_token` in tokenizer_config.json decides, else the template in tokenizer.json, else the tokenizer's class.
    """
    settings = _settings(folder / SETTINGS)
    asked = settings.get("add_bos_token")
    if asked is None and (folder / "tokenizer.json").is_file():
        whole = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        marked, plain = whole.encode("a").ids, whole.encode("a", add_special_tokens=False).ids
        return marked[0] if marked[:1] != plain[:1] else None
    if asked or (asked is None and str(settings.get("tokenizer_class")).startswith("LlamaTokenizer")):
        return load_tokenizer(folder).bos_id
    return None


def _settings(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
