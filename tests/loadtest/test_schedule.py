"""Schedules: made before the run, equal for equal seeds, with the rate and the spread that were asked for."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.errors import BadOption
from loadtest.schedule import CONSTANT, POISSON, Arrivals, parse_arrivals, times, times_of_profile


def rng(seed: int = 7) -> np.random.Generator:
    """A generator with a fixed seed."""
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("text", "shape"),
    [("constant", np.inf), ("poisson", 1.0), ("gamma:1.2", 1.2), ("gamma:4", 4.0), ("gamma:0.5", 0.5)],
)
def test_arrivals_by_name(text: str, shape: float) -> None:
    """A name gives its shape, and the shape gives the name back."""
    assert parse_arrivals(text).shape == shape
    assert str(parse_arrivals(text)) == text


@pytest.mark.parametrize("text", ["", "normal", "gamma", "gamma:", "gamma:0", "gamma:-1", "gamma:x"])
def test_other_names_are_refused(text: str) -> None:
    """What is no arrival process is said to be none."""
    with pytest.raises(BadOption, match="arrivals"):
        parse_arrivals(text)


def test_constant_gaps() -> None:
    """A constant schedule is the multiples of the gap, from 0 to before the end."""
    assert times(CONSTANT, 4.0, 1.0, rng()).tolist() == [0, 250_000_000, 500_000_000, 750_000_000]
    assert len(times(CONSTANT, 1000.0, 0.3, rng())) == 300


@pytest.mark.parametrize("shape", [0.5, 1.0, 1.2, 4.0])
def test_rate_and_spread(shape: float) -> None:
    """Gaps have the mean of the rate and the coefficient of variation of the shape."""
    at_ns = times(Arrivals(shape), 1000.0, 60.0, rng())
    gaps = np.diff(at_ns)
    assert len(at_ns) == pytest.approx(60_000, rel=0.03)
    assert gaps.mean() == pytest.approx(1e6, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / np.sqrt(shape), rel=0.03)
    assert (gaps >= 0).all()
    assert at_ns[0] >= 0
    assert at_ns[-1] < 60e9


def test_equal_seeds_give_equal_schedules() -> None:
    """The same seed gives the same starts, another one others."""
    first, again, other = (times(POISSON, 500.0, 2.0, rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[:10], other[:10])


def test_a_rate_that_changes() -> None:
    """Under a profile each stretch of time gets its own rate."""
    seconds, rates = np.array([0.0, 10.0, 12.0, 20.0]), np.array([100.0, 1000.0, 0.0])
    at_s = times_of_profile(POISSON, seconds, rates, rng()) * 1e-9
    assert (at_s < 10).sum() == pytest.approx(1000, rel=0.1)
    assert ((at_s >= 10) & (at_s < 12)).sum() == pytest.approx(2000, rel=0.1)
    assert (at_s > 12.0001).sum() == 0


def test_nothing_is_offered_in_no_time() -> None:
    """A duration without an expected request gives an empty schedule."""
    assert len(times(POISSON, 1.0, 0.0, rng())) == 0
