"""The wait of finished work for the event loop."""

from __future__ import annotations

import pytest

from dispatcher.way_back import FORGET_NS, WayBack


def test_it_follows_what_is_observed() -> None:
    """A wait that lasts is learned, and none is known at first."""
    back = WayBack()
    assert back.ns(5) == 0.0
    for _ in range(60):
        back.observe(1_000_000, 5)
    assert back.ns(5) == pytest.approx(1_000_000, rel=0.01)


def test_it_is_forgotten() -> None:
    """Half of it in `FORGET_NS`, so that a route that nothing takes is tried again."""
    back = WayBack()
    back.observe(1_000_000, 7)
    assert back.ns(7 + FORGET_NS) == pytest.approx(back.ns(7) / 2)
    assert back.ns(7 + 40 * FORGET_NS) < 1
    assert back.ns(0) == back.ns(7)
