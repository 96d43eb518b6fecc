"""Rates by steps, and what a server can sustain."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.errors import BadOption
from loadtest.stepping import parse_rates, saturation, search, why_saturated
from tests.loadtest.results import step_of


def server_with(limit: float) -> Any:
    """A server that answers up to `limit` requests/s."""

    def run(rate: float) -> dict[str, Any]:
        step = step_of(rate, min(rate, limit))
        step["saturated"] = why_saturated(step)
        return step

    return run


def test_rates() -> None:
    """Several by commas, or the scenario's own."""
    assert parse_rates("", 9.25) == [9.25]
    assert parse_rates("10,20.5", 1) == [10, 20.5]
    for text in ("x", "10,", "0", "-1", "inf", "nan"):
        with pytest.raises(BadOption, match="--rate"):
            parse_rates(text, 1)


def test_when_a_step_is_saturated() -> None:
    """Answers that stay behind, or failures beyond one in a hundred, mean that the rate is too high."""
    assert why_saturated(step_of(100, 96)) is None
    assert "94 answers/s" in str(why_saturated(step_of(100, 94)))
    assert why_saturated(step_of(100, failures={"timed out": 10})) is None
    assert "11 of 1000" in str(why_saturated(step_of(100, failures={"429 Too Many Requests": 11})))
    # Of ten requests three may be on their way at the end; four are a sign.
    assert why_saturated(step_of(1, 0.7)) is None
    assert why_saturated(step_of(1, 0.6)) is not None
    assert why_saturated(step_of(1, n_requests=0, offered_per_s=0.0, achieved_per_s=0.0)) is None


def test_search_stops_at_saturation() -> None:
    """The rate rises by the factor until the first step that is too much."""
    steps = search(server_with(1000), 200, 2, 20)
    assert [step["rate"] for step in steps] == [200, 400, 800, 1600]
    assert saturation(steps) == {
        "sustained_per_s": 800,
        "saturated_at_per_s": 1600,
        "reason": steps[-1]["saturated"],
        "limited_by": "server",
    }


def test_search_may_be_refined() -> None:
    """Further steps lie halfway, by ratio, between the highest rate that was sustained and the lowest that was not."""
    steps = search(server_with(1000), 200, 4, 20, 2)
    assert [round(step["rate"]) for step in steps] == [200, 800, 3200, 1600, 1131]
    assert saturation(steps)["sustained_per_s"] == 800
    assert [round(step["rate"]) for step in search(server_with(100), 800, 4, 20, 1)] == [800, 200, 50, 100]
    assert [step["rate"] for step in search(server_with(0), 200, 4, 2, 2)] == [200, 50]
    assert [step["rate"] for step in search(server_with(1e9), 200, 4, 2, 2)] == [200, 800]


def test_search_is_bounded() -> None:
    """A server that takes everything does not keep the search going."""
    steps = search(server_with(float("inf")), 1, 2, 3)
    assert [step["rate"] for step in steps] == [1, 2, 4]
    assert saturation(steps)["saturated_at_per_s"] is None
    with pytest.raises(BadOption, match="--step-factor"):
        search(server_with(1), 1, 1.0, 3)


def test_a_server_that_is_too_slow_from_the_start() -> None:
    """The rate falls, a few times at most; nothing is said to be sustained when nothing was."""
    steps = search(server_with(1), 200, 2, 20)
    assert [step["rate"] for step in steps] == [200, 100, 50, 25, 12.5]
    found = saturation(steps)
    assert found["sustained_per_s"] is None
    assert found["saturated_at_per_s"] == 12.5


def test_a_generator_at_its_limit_is_told() -> None:
    """Where the client processes were busy, the number is theirs."""
    steps = [step_of(100), step_of(200, 150, generator={"busy": 0.7, "limits": True}, saturated="too much")]
    assert saturation(steps)["limited_by"] == "generator"
