"""Processes under test: one that tests share, and what starting others needs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Reference

from tests.end_to_end.harness import ServiceProcess, serving
from tests.synthetic import SYNTHETIC


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A folder with a short path (those of Unix sockets are limited) for model files and proofs."""
    with tempfile.TemporaryDirectory(prefix="sidetok-") as folder:
        path = Path(folder)
        (path / "tokenizer.json").write_bytes(SYNTHETIC["byte_bpe"]())
        yield path


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path for one process."""
    with tempfile.TemporaryDirectory(prefix="sidetok-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def model(home: Path) -> str:
    """The argument that serves a small model."""
    return f"--model=small={home / 'tokenizer.json'}"


@pytest.fixture(scope="session")
def reference(home: Path) -> Reference:
    """The reference of the small model."""
    return Reference.from_file(str(home / "tokenizer.json"))


@pytest.fixture(scope="session")
def service(home: Path, model: str) -> Iterator[ServiceProcess]:
    """A process that serves the small model; tests leave it as they found it."""
    with serving(home, model, "--alias=short=small", cache_dir=home / "cache") as process:
        yield process
