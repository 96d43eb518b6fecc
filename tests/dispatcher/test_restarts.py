"""Delays between starts of an engine that ends."""

from dispatcher.gpu.restarts import JITTER, Restarts


def test_delays_double_up_to_the_longest() -> None:
    """Each failure doubles the delay; it never exceeds the longest."""
    restarts = Restarts(0.5, 3, lambda: 0.0)
    assert [restarts.after(0) for _ in range(5)] == [0.5, 1, 2, 3, 3]


def test_an_engine_that_did_well_starts_from_the_shortest() -> None:
    """Being ready for as long as the longest delay forgets the failures before; a shorter time does not."""
    restarts = Restarts(0.5, 3, lambda: 0.0)
    assert [restarts.after(ready_s) for ready_s in (0, 0, 2.9, 3, 0)] == [0.5, 1, 2, 0.5, 1]


def test_jitter_only_shortens() -> None:
    """A part of the delay is random, so that engines that end together do not start together."""
    restarts = Restarts(4, 4, iter([0.0, 0.5, 1.0]).__next__)
    assert [restarts.after(0) for _ in range(3)] == [4, 4 * (1 - JITTER / 2), 4 * (1 - JITTER)]


def test_a_longest_below_the_shortest() -> None:
    """Bounds in the wrong order mean the shortest."""
    restarts = Restarts(2, 1, lambda: 0.0)
    assert [restarts.after(0) for _ in range(3)] == [2, 2, 2]
