"""Tokenizers that GPUs should serve: what is ordered, and why some are not served."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.gpu.table_builder import read_tables
from dispatcher.gpu.wanted import WantedTokenizers
from tests.data import tokenizer_json
from tests.fakes import LIMIT_S


class Orders:
    """Wanted tokenizers, and the orders that come of them."""

    def __init__(self, cache_dir: Path) -> None:
        self._orders: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.wanted = WantedTokenizers(cache_dir, lambda key, fd: self._orders.put((key, fd)))

    def next(self) -> tuple[str, int]:
        """The next order."""
        return self._orders.get(timeout=LIMIT_S)

    @property
    def none_left(self) -> bool:
        """Nothing more was ordered."""
        return self._orders.empty()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Orders]:
    """No tokenizer yet."""
    made = Orders(tmp_path)
    yield made
    made.wanted.close()


def test_tables_are_ordered_once(orders: Orders) -> None:
    """However often a tokenizer is added; and that it is withdrawn, when it is removed."""
    data = tokenizer_json("byte_bpe")
    for _ in range(2):
        orders.wanted.add("a", data)
    key, fd = orders.next()
    try:
        assert key == "a"
        assert read_tables(fd).arrays
    finally:
        os.close(fd)
    assert "a" in orders.wanted
    assert orders.wanted.why_not("a") == ""
    orders.wanted.remove("a")
    assert orders.next() == ("a", -1)
    assert "a" not in orders.wanted
    assert orders.none_left


def test_what_no_device_serves_has_a_reason(orders: Orders) -> None:
    """Until it is added again."""
    orders.wanted.add("bad", b"{}")
    until_s = time.monotonic() + LIMIT_S
    while not (reason := orders.wanted.why_not("bad")):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert reason
    assert "bad" not in orders.wanted
    assert orders.none_left


def test_who_loads_may_refuse(orders: Orders) -> None:
    """The reason is kept until the tokenizer is removed."""
    orders.wanted.refuse("a", "no memory")
    assert orders.wanted.why_not("a") == "no memory"
    orders.wanted.remove("a")
    assert orders.wanted.why_not("a") == ""
