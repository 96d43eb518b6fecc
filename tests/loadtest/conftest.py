"""A service to load, shared by the tests of one worker process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.harness import ServiceProcess, serving
from tests.synthetic import SYNTHETIC


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A folder with a short path (those of Unix sockets are limited) and a small tokenizer file."""
    with tempfile.TemporaryDirectory(prefix="sidetok-") as folder:
        path = Path(folder)
        (path / "tokenizer.json").write_bytes(SYNTHETIC["byte_bpe"]())
        yield path


@pytest.fixture(scope="session")
def service(home: Path) -> Iterator[ServiceProcess]:
    """A process that serves the small model on the CPU route."""
    with serving(home, f"--model=small={home / 'tokenizer.json'}") as process:
        yield process
