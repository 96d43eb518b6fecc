"""Tokenizer files by file, directory or compressed."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from loadtest.errors import BadOption
from loadtest.tokenizer_file import name_of, read_tokenizer_file


def test_files_and_directories(tmp_path: Path) -> None:
    """The same bytes come from a file, its directory, and a compressed one; the name is that of the directory."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    for folder in (plain, packed):
        folder.mkdir()
    (plain / "tokenizer.json").write_bytes(b"{}")
    (packed / "tokenizer.json.xz").write_bytes(lzma.compress(b"{}"))
    for place in (plain, plain / "tokenizer.json", packed, packed / "tokenizer.json.xz"):
        assert read_tokenizer_file(str(place)) == b"{}"
        assert name_of(str(place)) == (place if place.is_dir() else place.parent).name


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """What is missing or broken is said with the option."""
    (tmp_path / "broken.xz").write_bytes(b"nothing")
    for place in (tmp_path, tmp_path / "broken.xz", tmp_path / "missing"):
        with pytest.raises(BadOption, match="--tokenizer"):
            read_tokenizer_file(str(place))
