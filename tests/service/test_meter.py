"""What the event loop counts."""

from __future__ import annotations

import pytest

from service.meter import LoopLag, RequestMeter


def test_requests_are_counted_by_their_labels() -> None:
    """Each combination of model, route and outcome has a histogram of its own."""
    meter = RequestMeter()
    meter.observe("a", "cpu", "ok", 0.001)
    meter.observe("a", "cpu", "ok", 0.002)
    meter.observe("a", "cpu", "deadline", 1.0)
    meter.observe("b", "cpu", "ok", 0.5)
    assert {key: histogram.n for key, histogram in meter.durations.items()} == {
        ("a", "cpu", "ok"): 2,
        ("a", "cpu", "deadline"): 1,
        ("b", "cpu", "ok"): 1,
    }
    assert meter.durations["a", "cpu", "ok"].sum_s == pytest.approx(0.003)


def test_lag_is_the_worst_of_the_window() -> None:
    """The worst lateness stands until it leaves the window; early ticks count as punctual."""
    lag = LoopLag(window=3)
    assert lag.worst_s == 0.0
    lag.observe(-0.5)
    assert lag.worst_s == 0.0
    for seconds in (0.2, 0.01, 0.02):
        lag.observe(seconds)
    assert lag.worst_s == 0.2
    lag.observe(0.0)
    assert lag.worst_s == 0.02
