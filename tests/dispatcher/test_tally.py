"""Promises of dispatcher.tally."""

from __future__ import annotations

import threading

from dispatcher.tally import Tally


def test_reading_does_not_count() -> None:
    """The value is the number of calls of `add`, however often it is read."""
    tally = Tally()
    assert (tally.value, tally.value) == (0, 0)
    for _ in range(3):
        tally.add()
    assert (tally.value, tally.value) == (3, 3)
    tally.add()
    assert tally.value == 4


def test_many_at_once() -> None:
    """A batch is counted in one step."""
    tally = Tally()
    tally.add_many(1000)
    tally.add_many(0)
    tally.add()
    assert tally.value == 1001


def test_no_count_is_lost() -> None:
    """Many threads may add and read at once."""
    tally = Tally()

    def work() -> None:
        for i in range(10_000):
            tally.add()
            if i % 100 == 0:
                assert tally.value > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.value == 40_000
