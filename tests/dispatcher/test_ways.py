"""The way of short work: what is known decides, and what is tried costs little."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from dispatcher.policy import ADAPTIVE, CPU, GPU, PREDICTED
from dispatcher.ways import (
    ANSWERS,
    FAR_ANSWERS,
    FIRST_ANSWERS,
    KNOWN,
    LOAD_DOUBT,
    QUIET_RATE,
    TRY_EVERY,
    WAYS,
    Seen,
    Standing,
    Ways,
    next_way,
)
from tests.dispatcher.route_rig import MS, US
from tests.dispatcher.served_host import Service, Work, h200

HOSTS = {
    # Encoding holds the interpreter for longer than the GPU route does: best at high loads.
    "h200": h200(),
    "encoding holds little": replace(h200(), encode=Work(15 * US, 2 * US), launch=Work(100 * US, 0)),
    "slow engine": replace(h200(), encode_beside=Work(10 * US, 400 * US)),
    "slow device": replace(h200(), replay=Work(900 * US, 30 * US)),
}
N_DOCUMENTS, N_SETTLES = 9_000, 3_000


class Predicts(Ways):
    """Never compares anything."""

    def now(self, now_ns: int, n_documents: int = 1) -> str:
        """Always the same."""
        return PREDICTED


@cache
def median_ns(host: str, rate: float, policy: str, predicts_only: bool = False) -> float:
    """Of a service at one load, once it knows that."""
    service = Service(HOSTS[host], policy)
    if predicts_only:
        service.chooser.ways = Predicts()
    service.poisson(rate, N_DOCUMENTS)
    return service.median_ns(first=N_SETTLES)


@pytest.mark.parametrize(
    ("host", "rate"),
    [*((host, rate) for host in HOSTS for rate in (1_000, 4_000)), *(("h200", rate) for rate in (2_000, 6_000, 7_750))],
)
def test_no_slower_than_the_better_route(host: str, rate: float) -> None:
    """Whatever threads cost each other, which nobody predicts: the median is within 10 % of the better policy's."""
    assert median_ns(host, rate, ADAPTIVE) <= 1.1 * min(median_ns(host, rate, policy) for policy in (CPU, GPU))


def test_predictions_alone_do_not_see_what_threads_cost_each_other() -> None:
    """Each piece of work goes where it is predicted to be answered first, and all are slower than with one policy."""
    alone = min(median_ns("h200", 4_000, policy) for policy in (CPU, GPU))
    assert median_ns("h200", 4_000, ADAPTIVE, predicts_only=True) >= 1.15 * alone


def test_a_full_service_takes_the_way_that_answers_more() -> None:
    """Also when more is asked for than any way can answer."""
    service = Service(HOSTS["h200"])
    service.poisson(14_000, 3 * N_DOCUMENTS)
    assert service.share_of(GPU, first=2 * N_DOCUMENTS) >= 0.75


def seen(slower: float, dearer: float = 1.0, n_tries: int = 4) -> Seen:
    """A way that takes so many times as long, and so many times as much CPU."""
    return Seen(n_tries, math.log(slower), math.log(dearer))


@pytest.mark.parametrize(
    ("cpu", "gpu", "expected"),
    [
        (seen(1.3), seen(0.8), GPU),
        (seen(0.7), seen(0.8), CPU),
        (seen(1.3), seen(0.96), PREDICTED),
        # As fast as what is kept, or as the fastest: the host's CPU decides, if it differs.
        (seen(1.03, 0.8), seen(1.3), CPU),
        (seen(1.08, 0.5), seen(1.3), PREDICTED),
        (seen(1.03, 0.95), seen(1.3), PREDICTED),
        (seen(0.50, 1.0), seen(0.51, 0.7), GPU),
        (seen(0.50, 1.0), seen(0.60, 0.1), CPU),
        # Once is not enough.
        (seen(1.3), seen(0.5, n_tries=1), PREDICTED),
    ],
)
def test_the_way_to_keep(cpu: Seen, gpu: Seen, expected: str) -> None:
    """The fastest one, or among those that are as fast the one with the least host CPU; for noise nothing changes."""
    assert next_way(PREDICTED, {CPU: cpu, GPU: gpu}) == expected


def test_tries_are_averaged() -> None:
    """One more changes little when there were many; a clear one is enough to go by. What is faster costs nothing."""
    tested = Seen()
    tested.learn(math.log(2), 0.0, 50.0)
    assert (tested.n_tries, tested.cost) == (1, 50.0)
    tested.learn(math.log(0.5), 0.0, 50.0)
    assert tested.slower == pytest.approx(0.0)
    assert tested.cost == 0.0
    for _ in range(20):
        tested.learn(0.8, 0.4, 9.0)
    assert tested.slower == pytest.approx(0.8, abs=0.1)
    clear = Seen()
    clear.learn(-0.5, 0.0, 0.0, is_clear=True)
    assert next_way(PREDICTED, {CPU: clear, GPU: Seen()}) == CPU


def test_all_others_are_compared_with_what_is_kept() -> None:
    """Also after a change."""
    standing = Standing(PREDICTED, {CPU: seen(0.5, 2.0), GPU: seen(0.8)})
    standing.keep(CPU)
    assert standing.kept == CPU
    assert set(standing.others) == {PREDICTED, GPU}
    assert math.exp(standing.others[PREDICTED].slower) == pytest.approx(2.0)
    assert math.exp(standing.others[PREDICTED].dearer) == pytest.approx(0.5)
    assert math.exp(standing.others[GPU].slower) == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("tried", "slower_by", "n_since"),
    [
        (Seen(), {}, FIRST_ANSWERS),
        (Seen(3), {}, 8 * FIRST_ANSWERS),
        (Seen(8), {}, FIRST_ANSWERS << KNOWN),
        (Seen(8, cost=1_000.0), {}, TRY_EVERY * 1_000),
        # What predictions say counts before anything is known.
        (Seen(), {GPU: 9.0}, TRY_EVERY * 9 * ANSWERS),
        # A way that is slow by far is known from two tries.
        (Seen(2, math.log(3)), {}, FIRST_ANSWERS << KNOWN),
    ],
)
def test_when_a_way_is_tried(tried: Seen, slower_by: dict[str, float], n_since: int) -> None:
    """The more rarely the more it costs, and the better it is known."""
    standing = Standing(PREDICTED, {CPU: Seen(n_since=0), GPU: tried})
    tried.n_since = n_since - 1
    assert standing.due(slower_by, ANSWERS) == PREDICTED
    tried.n_since = n_since
    assert standing.due(slower_by, ANSWERS) == GPU


def test_what_is_clear_is_not_doubted() -> None:
    """A way that is slow by far stays known where it would be slow even so; what is not clear counts as one try."""
    standing = Standing(GPU, {CPU: seen(12.0, n_tries=5), PREDICTED: seen(1.1, n_tries=5)})
    beside = standing.doubted(by=LOAD_DOUBT)
    assert (beside.others[CPU].n_tries, beside.others[PREDICTED].n_tries) == (5, 1)
    assert standing.doubted(by=math.log(6)).others[CPU].n_tries == 1
    assert standing.doubted().others[CPU].n_tries == 1
    assert standing.others[PREDICTED].n_tries == 5
    assert beside.others[CPU].slower == pytest.approx(math.log(12))
    slower = standing.doubted(time=1.0, by=math.log(3)).others[CPU]
    assert slower.n_tries == 5
    assert slower.slower == pytest.approx(math.log(4))


class Clients:
    """Ask for one document after the other, at a rate; an answer takes what a way takes at that rate."""

    def __init__(self, took_ns: Callable[[str, float], int]) -> None:
        self.ways = Ways(lambda: self.now_ns // 10)
        self.now_ns = 1
        self.taken: list[str] = []
        self._took_ns = took_ns
        self._under_way: list[tuple[int, int, object]] = []

    def ask(self, rate: float, n_documents: int) -> list[str]:
        """The ways that were taken."""
        first = len(self.taken)
        for _ in range(n_documents):
            self.now_ns += int(1e9 / rate)
            for end_ns, since_ns, spell in [item for item in self._under_way if item[0] <= self.now_ns]:
                spell.answered(since_ns, end_ns)  # type: ignore[attr-defined]
            self._under_way = [item for item in self._under_way if item[0] > self.now_ns]
            way = self.ways.now(self.now_ns)
            self.taken.append(way)
            self._under_way.append((self.now_ns + self._took_ns(way, rate), self.now_ns, self.ways.spell))
        return self.taken[first:]


def by_load(way: str, rate: float) -> int:
    """The CPU is best at a small load, a GPU at a large one."""
    best = GPU if rate > 4_000 else CPU
    return MS if way == best else 3 * MS


def test_nothing_is_compared_while_little_comes() -> None:
    """Each document is predicted, and nobody pays for a try."""
    clients = Clients(lambda way, rate: MS)
    assert set(clients.ask(0.8 * QUIET_RATE, 2_000)) == {PREDICTED}


def test_tries_of_a_slow_way_are_few() -> None:
    """It is known to be slow after a few documents, which cost all of them a few percent."""
    clients = Clients(lambda way, rate: 5 * MS if way == CPU else MS)
    taken = clients.ask(4_000, 20_000)
    assert 0 < taken.count(CPU) <= 0.03 * len(taken)


def test_ways_are_known_by_the_load() -> None:
    """A way that is best at one load is taken again when that load comes back, and another one at another load."""
    clients = Clients(by_load)
    clients.ask(1_000, 4_000)
    clients.ask(8_000, 16_000)
    for rate, best in ((1_000, CPU), (8_000, GPU), (1_000, CPU), (8_000, GPU)):
        assert clients.ask(rate, 2_000).count(best) >= 0.8 * 2_000


def test_another_load_is_seen_at_once() -> None:
    """Whoever asks much more or much less than before goes the way that is best then, after 50 ms or 100 documents."""
    clients = Clients(by_load)
    clients.ask(1_000, 8_000)
    clients.ask(8_000, 32_000)
    for rate, best in ((1_000, CPU), (8_000, GPU)) * 3:
        n_until = max(100, int(rate * 0.05))
        assert clients.ask(rate, n_until + 400)[n_until:].count(best) >= 0.85 * 400


@pytest.mark.parametrize("pause_ms", [30, 150, 700, 20_000])
def test_a_pause_is_no_smaller_load(pause_ms: int) -> None:
    """After it, whoever asks as much as before goes the way that was known to be best."""
    clients = Clients(by_load)
    clients.ask(1_000, 8_000)
    clients.ask(8_000, 32_000)
    for _ in range(3):
        clients.now_ns += pause_ms * MS
        assert clients.ask(8_000, 600)[200:].count(GPU) >= 0.85 * 400


@pytest.mark.parametrize("pause_ns", [0, 600 * MS])
def test_a_way_that_is_slow_by_far_is_tried_by_few(pause_ns: int) -> None:
    """Once a load is there for a second, or one beside it was: by under 1 % of what comes in any half of a second."""
    clients = Clients(lambda way, rate: {GPU: 150 * US, PREDICTED: 160 * US, CPU: 2 * MS}[way])
    clients.ask(10_000, 10_000)
    for rate in (10_000, 20_000, 30_000, 20_000, 10_000, 30_000):
        taken = clients.ask(rate, rate)
        clients.now_ns += pause_ns
        for first in range(0, rate // 2 + 1, rate // 10):
            assert taken[first : first + rate // 2].count(CPU) < 0.01 * rate / 2


@pytest.mark.parametrize("slow_ms", [4, 10_000])
def test_a_try_of_a_slow_way_ends_after_a_few_answers(slow_ms: int) -> None:
    """With what came until these were there, or until they should have been."""
    clients = Clients(lambda way, rate: slow_ms * MS if way == CPU else MS)
    taken = clients.ask(4_000, 4_000)
    first = taken.index(CPU)
    n_tried = next(n for n in range(1, len(taken)) if taken[first + n] != CPU)
    assert FAR_ANSWERS <= n_tried <= FAR_ANSWERS + 8 * 4


def test_a_way_that_becomes_slow_is_left() -> None:
    """What was known of the others is doubted, so they are tried soon."""
    times = {PREDICTED: 2 * MS, CPU: MS, GPU: 2 * MS}
    clients = Clients(lambda way, rate: times[way])
    assert clients.ask(4_000, 20_000)[-1_000:].count(CPU) >= 900
    times[CPU] = 8 * MS
    taken = clients.ask(4_000, 6_000)
    assert taken[-2_000:].count(CPU) <= 200


def test_a_way_that_becomes_slow_step_by_step_is_left() -> None:
    """Each step alone leaves another way slow by far; all of them do not."""
    times = {PREDICTED: 1_300_000, CPU: 24 * MS, GPU: MS}
    clients = Clients(lambda way, rate: times[way])
    clients.ask(1_000, 8_000)
    for _ in range(3):
        for way in (PREDICTED, GPU):
            times[way] = times[way] * 28 // 10
        clients.ask(1_000, 8_000)
    for way in (PREDICTED, GPU):
        times[way] *= 4
    assert clients.ask(1_000, 24_000)[-2_000:].count(CPU) >= 1_800


def test_a_way_that_does_not_answer_is_given_up() -> None:
    """A try ends without its answers, and the way counts as slow."""
    clients = Clients(lambda way, rate: 10_000 * MS if way == GPU else MS)
    taken = clients.ask(4_000, 20_000)
    assert 0 < taken.count(GPU) <= 0.03 * len(taken)


def test_all_ways_are_those_of_the_policy() -> None:
    """Nothing else is ever taken."""
    clients = Clients(lambda way, rate: MS)
    assert set(clients.ask(4_000, 20_000)) == set(WAYS)
