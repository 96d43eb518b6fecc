"""Fixtures of more than one room: loaded tokenizers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from dispatcher.tokenizer import Tokenizer, load_tokenizer
from tests.data import EMBEDDED, tokenizer_json


@lru_cache(maxsize=8)
def _loaded(family: str, engine: str) -> Tokenizer:
    return load_tokenizer(tokenizer_json(family), engine=engine, cache_dir=None)


@pytest.fixture(scope="session")
def embedded() -> Tokenizer:
    """The embedded tokenizer with the engine that `auto` picks."""
    return _loaded(EMBEDDED, "auto")


@pytest.fixture
def synthetic(request: pytest.FixtureRequest) -> Tokenizer:
    """A synthetic tokenizer by its name (indirect parameter), with the engine that `auto` picks."""
    return _loaded(request.param, "auto")


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """An empty directory for proofs."""
    return tmp_path / "cache"
