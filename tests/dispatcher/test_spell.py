"""What a spell says of the answers in it."""

from __future__ import annotations

import math

import pytest

from dispatcher.policy import CPU, GPU, PREDICTED
from dispatcher.spell import FULL, Measure, Spell
from tests.dispatcher.route_rig import MS, US

SECOND = 1_000_000_000


def spell(n_answers: int, took_ns: int, lasted_ns: int = SECOND, cpu_ns: int = SECOND) -> Measure:
    """Answers that come evenly while a spell lasts, one for each document."""
    tested = Spell(CPU, SECOND, SECOND, 2 * SECOND)
    for number in range(n_answers):
        since_ns = SECOND + number * lasted_ns // n_answers
        tested.n_asked += 1
        if not tested.seen_from_ns:
            tested.note_start(since_ns)
        tested.answered(since_ns, since_ns + took_ns)
    return tested.measure(SECOND + lasted_ns, cpu_ns, 1)


def test_what_is_measured() -> None:
    """Time and CPU time of an answer, and how many came."""
    measure = spell(500, 3 * MS)
    assert math.exp(measure.time) == pytest.approx(3 * MS)
    assert math.exp(measure.cpu) == pytest.approx(SECOND / 500)
    assert measure.rate == pytest.approx(500)
    assert 2**measure.load == pytest.approx(500)
    assert (measure.n_answers, measure.spent_ns) == (500, 500 * 3 * MS)
    assert measure.n_under_way == pytest.approx(1.5)


def test_what_the_other_way_left_does_not_count() -> None:
    """Work that came before the spell had settled says nothing of it; it was answered all the same."""
    tested = Spell(GPU, 0, 10 * MS, 20 * MS)
    for since_ms in range(20):
        tested.answered(since_ms * MS, since_ms * MS + (900 if since_ms < 10 else 5) * US)
    measure = tested.measure(30 * MS, 0, 1)
    assert math.exp(measure.time) == pytest.approx(5 * US)
    assert measure.n_answers == 20


def test_too_few_answers() -> None:
    """They count as if they took as long as there was to wait for."""
    tested = Spell(GPU, 0, 10 * MS, 20 * MS)
    tested.answered(11 * MS, 12 * MS)
    assert math.exp(tested.measure(90 * MS, 0, 32).time) == pytest.approx(80 * MS)


def test_spells_are_compared_with_those_around_them() -> None:
    """So a load that grows all the time says nothing against the spell in the middle."""
    before, middle, after = (spell(1_000, took_ns) for took_ns in (1 * MS, 2 * MS, 4 * MS))
    assert middle.slower_than(before, after) == pytest.approx(0.0)
    assert spell(1_000, 4 * MS).slower_than(before, after) == pytest.approx(math.log(2))
    assert spell(500, MS).dearer_than(before, after) == pytest.approx(math.log(2))


def test_a_full_service_is_judged_by_its_rate() -> None:
    """Where much is under way, answers take long because of what waits: more of them a second are faster."""
    slow, fast = spell(8_000, 20 * MS), spell(10_000, 25 * MS)
    assert slow.n_under_way > FULL
    assert fast.slower_than(slow, slow) == pytest.approx(math.log(0.8))


def test_the_cost_of_a_try() -> None:
    """What it and the time after it took more than before, in answers of the time before."""
    normal, slow = spell(100, MS), spell(100, 3 * MS)
    assert slow.cost(normal, normal) == pytest.approx(200)
    assert normal.cost(slow, normal) == 0


def test_what_predictions_say_of_the_other_route() -> None:
    """By which part it would be slower than what was chosen, each time."""
    tested = Spell(PREDICTED, 0, 0, MS)
    for _ in range(3):
        tested.predicted(CPU, 2.0)
    tested.predicted(GPU, 1.4)
    said = tested.others_slower_by()
    assert said == {GPU: pytest.approx(0.75), CPU: pytest.approx(0.1)}
