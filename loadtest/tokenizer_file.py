"""Tokenizer files as they are given on a command line: a file, a model directory, compressed or not."""

from __future__ import annotations

import lzma
from pathlib import Path

from loadtest.errors import BadOption

NAMES = ("tokenizer.json", "tokenizer.json.xz")


def read_tokenizer_file(text: str) -> bytes:
    """The bytes of a tokenizer.json, of the one in a directory, or of one compressed by xz. Raises `BadOption`."""
    path = Path(text)
    if path.is_dir():
        path = next((path / name for name in NAMES if (path / name).is_file()), path / NAMES[0])
    try:
        data = path.read_bytes()
        return lzma.decompress(data) if path.suffix == ".xz" else data
    except (OSError, lzma.LZMAError) as error:
        raise BadOption(f"--tokenizer {text}: cannot be read ({type(error).__name__})") from error


def name_of(text: str) -> str:
    """The name of the model directory."""
    path = Path(text).resolve()
    return path.name if path.is_dir() else path.parent.name
