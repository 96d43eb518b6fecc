"""Observed costs: they follow what changes, and hardly what does not."""

from __future__ import annotations

import random

import pytest

from dispatcher.costs import (
    ASCII,
    FORGET_NS,
    MIXED,
    N_CLASSES,
    WIDE,
    CostKey,
    Costs,
    Curve,
    Line,
    StartValues,
    content_kind,
    size_class,
)

SECOND = 1_000_000_000


def line(n_bytes: int) -> float:
    """What work costs in most tests: 20 us, and 10 ns a byte."""
    return 20_000 + 10 * n_bytes


def observed(curve: Curve, sizes: list[int], cost: float, n: int, noise: float = 0.0, seed: int = 1) -> None:
    """Observe `n` times `cost` times the line, with a log-normal noise."""
    source = random.Random(seed)
    for number in range(n):
        n_bytes = sizes[number % len(sizes)]
        curve.observe(n_bytes, cost * line(n_bytes) * source.lognormvariate(0, noise), number)


def test_unobserved_curve_is_its_start() -> None:
    """Before anything was seen, the start values count."""
    curve = Curve(Line(1_000, 2))
    assert curve.at(0) == 1_000
    assert curve.at(500) == 2_000
    assert curve.snapshot() == []


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 4.0, 50.0])
def test_first_observations_count_most(factor: float) -> None:
    """Start values that are far off are forgotten after a few observations."""
    curve = Curve(Line(20_000, 10))
    observed(curve, [4_000], factor, 5)
    assert curve.at(4_000) == pytest.approx(factor * line(4_000), rel=0.01)


@pytest.mark.parametrize("factor", [0.2, 0.5, 3.0, 10.0])
def test_a_change_is_followed(factor: float) -> None:
    """Within 40 observations a new cost is known to 10 %, in spite of noise."""
    curve = Curve(Line(20_000, 10), 2.0)
    observed(curve, [4_000], 1.0, 200, noise=0.1)
    observed(curve, [4_000], factor, 40, noise=0.1, seed=2)
    assert curve.at(4_000) == pytest.approx(factor * line(4_000), rel=0.1)


def test_stalls_hardly_count() -> None:
    """One observation in a hundred that takes a hundred times as long moves the prediction by less than 15 %."""
    curve = Curve(Line(20_000, 10), 2.0)
    source = random.Random(3)
    worst = 0.0
    for number in range(3_000):
        stall = 100 if number % 100 == 50 else 1
        curve.observe(4_000, stall * line(4_000) * source.lognormvariate(0, 0.1), number)
        if number > 30:
            worst = max(worst, abs(curve.at(4_000) / line(4_000) - 1))
    assert worst < 0.15
    assert curve.at(4_000) == pytest.approx(line(4_000), rel=0.1)


def test_noise_is_averaged() -> None:
    """With 20 % noise, the prediction stays within 20 % of the median."""
    curve = Curve(Line(20_000, 10), 2.0)
    source = random.Random(4)
    for number in range(2_000):
        curve.observe(4_000, line(4_000) * source.lognormvariate(0, 0.2), number)
        assert curve.at(4_000) == pytest.approx(line(4_000), rel=0.2)


def test_size_classes_are_apart() -> None:
    """What is slow at one size only is slow there only."""
    curve = Curve(Line(20_000, 10), 2.0)
    observed(curve, [1_000], 5.0, 60)
    observed(curve, [100_000], 1.0, 60)
    assert curve.at(1_000) == pytest.approx(5 * line(1_000), rel=0.05)
    assert curve.at(100_000) == pytest.approx(line(100_000), rel=0.05)
    assert [entry.size_class for entry in curve.snapshot()] == [size_class(1_000), size_class(100_000)]


def test_within_a_class_the_line_counts() -> None:
    """A class spans a factor of four; its observations are judged by their own size."""
    curve = Curve(Line(20_000, 10))
    observed(curve, [8_200, 16_000, 32_000], 2.0, 60)
    for n_bytes in (8_200, 32_000):
        assert curve.at(n_bytes) == pytest.approx(2 * line(n_bytes), rel=0.01)


def test_what_is_not_observed_is_forgotten() -> None:
    """A class that nothing is known of any more takes the factor of its nearest neighbour, and starts over fast."""
    curve = Curve(Line(20_000, 10), 2.0)
    observed(curve, [1_000_000], 8.0, 50)
    for number in range(1, 400):
        now_ns = number * SECOND
        curve.observe(4_000, 1.5 * line(4_000), now_ns)
        curve.age(SECOND, now_ns)
    assert curve.at(1_000_000) == pytest.approx(1.5 * line(1_000_000), rel=0.01)
    curve.observe(1_000_000, 3 * line(1_000_000), 400 * SECOND)
    assert curve.at(1_000_000) == pytest.approx(3 * line(1_000_000), rel=0.2)


def test_a_curve_that_is_never_observed_goes_back_to_its_start() -> None:
    """Bad times are not remembered for ever."""
    curve = Curve(Line(20_000, 10), 2.0)
    observed(curve, [4_000], 9.0, 50)
    for number in range(1, 12):
        curve.age(FORGET_NS, number * FORGET_NS)
    assert curve.at(4_000) == line(4_000)


def test_costs_are_apart_by_route_model_and_kind() -> None:
    """Each has its own curve, with its own start values."""
    costs = Costs({CostKey("cpu", "a", ASCII): StartValues(Line(100, 0), Line(50, 0))})
    assert costs.of("cpu", "a", ASCII).time.at(0) == 100
    assert costs.of("cpu", "a", ASCII).cpu.at(0) == 50
    others = [costs.of("gpu", "a", ASCII), costs.of("cpu", "b", ASCII), costs.of("cpu", "a", WIDE)]
    costs.observe_cpu_route("a", ASCII, 8_000, 2, 5_000, 3_000, 1)
    assert costs.of("cpu", "a", ASCII).time.at(4_000) > 100
    assert all(not cost.time.snapshot() and not cost.cpu.snapshot() for cost in others)


def test_a_round_of_documents_is_observed_by_document() -> None:
    """The CPU route learns what one document costs; the GPU route what one replay takes and a document costs."""
    costs = Costs()
    for number in range(30):
        costs.observe_cpu_route("m", ASCII, 40_000, 10, 600_000, 500_000, number)
        costs.observe_gpu_route("m", ASCII, 40_000, 10, 70_000, 30_000, number)
    cpu, gpu = costs.of("cpu", "m", ASCII), costs.of("gpu", "m", ASCII)
    assert cpu.time.at(4_000) == pytest.approx(60_000, rel=0.01)
    assert cpu.cpu.at(4_000) == pytest.approx(50_000, rel=0.01)
    assert gpu.time.at(40_000) == pytest.approx(70_000, rel=0.01)
    assert gpu.cpu.at(4_000) == pytest.approx(3_000, rel=0.01)
    assert set(costs.snapshot()) == {CostKey("cpu", "m", ASCII), CostKey("gpu", "m", ASCII)}


def test_what_is_left_unanswered_is_observed() -> None:
    """By size class; it is forgotten like everything else."""
    costs = Costs()
    for number in range(100):
        costs.observe_gpu_route("m", ASCII, 8_000, 2, 50_000, 1_000, SECOND + number, 1)
        costs.observe_gpu_route("m", ASCII, 100_000, 1, 50_000, 1_000, SECOND + number)
    part = costs.of("gpu", "m", ASCII).unanswered
    assert part[size_class(4_000)] == pytest.approx(0.5, abs=0.01)
    assert part[size_class(100_000)] == 0
    for number in range(2, 300):
        costs.observe_gpu_route("m", ASCII, 100_000, 1, 50_000, 1_000, number * SECOND)
    assert part[size_class(4_000)] < 0.01


def test_costs_age_as_they_are_observed() -> None:
    """Nobody has to remember to call anything."""
    costs = Costs()
    costs.observe_gpu_route("m", ASCII, 1_000_000, 1, 90_000_000, 1, SECOND)
    slow_ns = costs.of("gpu", "m", ASCII).alone.at(1_000_000)
    for number in range(2, 300):
        costs.observe_cpu_route("m", ASCII, 4_000, 1, 50_000, 50_000, number * SECOND)
    assert costs.of("gpu", "m", ASCII).alone.at(1_000_000) < slow_ns / 10


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", ASCII),
        ("plain", ASCII),
        ("na\u00efve caf\u00e9 with few accents", MIXED),
        ("a" * 2_000 + "\u6f22", MIXED),
        ("\u6f22\u5b57\u4eee\u540d", WIDE),
        ("\u041f\u0440\u0438\u0432\u0435\u0442", WIDE),
        ("lone \ud800 surrogate", MIXED),
    ],
)
def test_content_kind(text: str, kind: str) -> None:
    """By bytes a character."""
    assert content_kind(text) == kind


@pytest.mark.parametrize(("text", "kind"), [("plain", ASCII), ("caf\u00e9 au lait", MIXED), ("\u6f22" * 400, WIDE)])
def test_content_kind_of_bytes(text: str, kind: str) -> None:
    """The same from UTF-8, also when the sample ends inside a character."""
    assert content_kind(text.encode()) == kind
    assert content_kind(memoryview(text.encode())) == kind


def test_every_size_has_a_class() -> None:
    """From nothing to more than fits memory."""
    assert [size_class(n) for n in (0, 1, 2, 1_024, 4_096, 1 << 38)] == [0, 0, 1, 5, 6, 19]
    assert size_class((1 << 39) - 1) == N_CLASSES - 1


def test_what_a_replay_works_is_kept_apart_from_what_it_waits() -> None:
    """Device and host CPU are the route's own; without the device's time, all of it is."""
    costs = Costs()
    for number in range(40):
        costs.observe_gpu_route("m", ASCII, 1_000_000, 1, 40_000_000, 300_000, SECOND + number, replay_ns=200_000)
        costs.observe_gpu_route("m", ASCII, 4_000, 1, 90_000, 10_000, SECOND + number)
    cost = costs.of("gpu", "m", ASCII)
    assert cost.work.at(1_000_000) == pytest.approx(500_000, rel=0.1)
    assert cost.alone.at(1_000_000) == pytest.approx(40_000_000, rel=0.1)
    assert cost.work.at(4_000) == pytest.approx(90_000, rel=0.1)


def test_the_way_there_and_back_is_observed() -> None:
    """Nothing until it was seen, then as any other cost."""
    costs = Costs()
    assert costs.of("gpu", "m", ASCII).beside.at(4_000) <= 1
    for number in range(40):
        costs.observe_gpu_answer("m", ASCII, 4_000, 70_000, SECOND + number)
    assert costs.of("gpu", "m", ASCII).beside.at(4_000) == pytest.approx(70_000, rel=0.1)


def test_long_documents_that_take_what_is_predicted_are_observed_seldom() -> None:
    """A replay of one is looked at again after 96 ms at most, and after 3 ms once one took much longer or shorter."""
    costs = Costs()
    alone, shared = 480_000, 40_000
    for n in range(40):
        now_ns = n * SECOND // 10
        for n_bytes in (alone, shared):
            until_ns = costs.observe_gpu_route("m", ASCII, n_bytes, 1, 300_000, 50_000, now_ns)
            assert until_ns in (0, now_ns + (96_000_000 if n_bytes == alone else 3_000_000)) or n < 13
    assert costs.observe_gpu_route("m", ASCII, alone, 1, 900_000, 50_000, 5 * SECOND) == 5 * SECOND + 3_000_000
    assert costs.observe_gpu_route("m", ASCII, alone, 1, 900_000, 50_000, 5 * SECOND + 1) == 5 * SECOND + 3_000_000
