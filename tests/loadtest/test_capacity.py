"""Arithmetic of capacity, on results whose figures are known."""

from __future__ import annotations

import pytest

from loadtest.capacity import Prices, capacity_of, table
from tests.loadtest.results import result_of, step_of

CPU_ONLY = {"host_cpu_us_per_request": 200.0, "documents_by_route": {"cpu": 10.0}}


def test_the_highest_sustained_step_counts() -> None:
    """Rate, CPUs kept busy and GPUs fed come from the best step that was sustained."""
    result = result_of(step_of(100), step_of(185), step_of(400, 200, saturated="behind"), scenario="fleet")
    capacity = capacity_of(result)
    assert capacity is not None
    assert capacity.sustained_per_s == 185
    assert capacity.cores == pytest.approx(185 * 50e-6)
    assert capacity.gpus_fed == pytest.approx(20)
    assert capacity.n_gpus == 2
    assert capacity.per_engine_per_s == 92.5


def test_only_the_fleet_tells_of_gpus_fed() -> None:
    """Short prompts say nothing about how many GPUs with long contexts are fed."""
    capacity = capacity_of(result_of(step_of(100)))
    assert capacity is not None
    assert capacity.gpus_fed is None


def test_cost() -> None:
    """CPUs by how busy they are, GPUs as a whole; without prices there is no cost, without the GPU route no GPU."""
    on_cpu = capacity_of(result_of(step_of(1000, server=CPU_ONLY)))
    on_gpu = capacity_of(result_of(step_of(1000)))
    assert on_cpu is not None
    assert on_gpu is not None
    prices = Prices(core_hour=0.036, gpu_hour=3.6)
    assert on_cpu.cost_per_million(Prices()) is None
    assert on_cpu.cost_per_million(prices) == pytest.approx(0.2 * 0.036 / 3.6e6 * 1e6)
    assert on_gpu.cost_per_million(prices) == pytest.approx((0.05 * 0.036 + 2 * 3.6) / 3.6e6 * 1e6)


@pytest.mark.parametrize(
    "step",
    [
        step_of(100, 10, saturated="behind"),
        step_of(100, generator={"busy": 0.9, "limits": True}),
        step_of(100, equality={"checked": True, "n_different": 1, "n_equal": 1}),
    ],
)
def test_what_is_no_capacity(step: dict[str, object]) -> None:
    """Nothing sustained, a generator at its limit, or wrong ids: no row."""
    assert capacity_of(result_of(step)) is None
    assert table([result_of(step)]) == "No result sustained a rate with the right ids."


def test_the_table() -> None:
    """A row for each result, with what limited it."""
    found = {"sustained_per_s": 100, "saturated_at_per_s": 200, "reason": "behind", "limited_by": "server"}
    text = table(
        [
            result_of(step_of(100), saturation=found),
            result_of(step_of(1000, server={**CPU_ONLY, "host_cpu_us_per_request": 7000.0}), saturation=found),
            result_of(step_of(10), saturation={**found, "limited_by": "generator"}, scenario="fleet"),
        ]
    )
    assert "| short | GPU 25 % | 100 | 50 | 50 | 0.005 | 0.4 | – | – | the service: behind |" in text
    assert "| short | CPU | 1,000 | – | 7,000 | 7 | 4 | – | – | the machine's CPUs |" in text
    assert "| 1.08 | – | the generator: the service can do more |" in text


def test_what_is_not_offered_freely_is_no_capacity() -> None:
    """Clients that wait for answers never show what a server can take, nor does a machine that others use."""
    assert capacity_of(result_of(step_of(100, neighbours={"n": 8, "work_per_s": 1.0}))) is None
    assert capacity_of(result_of(step_of(100), scenario="closed")) is None


def test_named_rows() -> None:
    """Names stay with their results, also when one of them sustained nothing."""
    results = [result_of(step_of(100)), result_of(step_of(100, 10, saturated="behind")), result_of(step_of(50))]
    lines = table(results, names=["one", "none", "other"]).splitlines()
    assert lines[0].startswith("| result | scenario |")
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| one", "| other"]
