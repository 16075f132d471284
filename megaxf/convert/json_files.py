"""Settings that other programs keep as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megaxf.convert.errors import ConvertError


def read_json(path: Path) -> dict[str, Any]:
    """The settings by name. Raises ConvertError where the file is missing, damaged or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConvertError(f"{path} is missing") from None
    except ValueError as error:
        raise ConvertError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConvertError(f"{path} holds a {type(content).__name__}, not settings")
    return content
