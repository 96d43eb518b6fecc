"""Dispatchers with scripted tokenizers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Four workers."""
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def lone() -> Iterator[Rig]:
    """One worker, so that a test decides what waits."""
    rig = Rig(1)
    yield rig
    rig.close()
