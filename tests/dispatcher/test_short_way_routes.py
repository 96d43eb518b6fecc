"""The short way on a route in simulated time, and on an engine of this process that the caller drives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.link import Completion
from dispatcher.gpu.model_queue import ModelQueue
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpu.route import GpuRoute
from dispatcher.gpu.short_way import MAX_FLIGHTS, OPEN_NS, Finding, Flight, ShortCall, ShortWay
from dispatcher.gpu.short_ways import ShortWays
from dispatcher.meter import WorkKey
from dispatcher.tokenizer import Tokenizer
from tests.dispatcher.group_caller import PLAIN
from tests.dispatcher.route_rig import MODEL, Rig
from tests.dispatcher.test_local_engine import Local, make
from tests.dispatcher.test_short_way import LONG, always, text_of
from tests.engine_rig import until

__all__ = ["always", "make"]


class Found:
    """See `Ordinary`, with groups of the rig."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.counted, self.n_choices, self.n_cancelled = rig, 0, 0, 0

    def again(self, text: ReservedText, on_done: Any) -> Any:
        """A group."""
        return self.rig.group(text.data), self

    def count_choice(self) -> None:
        """Count."""
        self.n_choices += 1

    def count(self, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """Count."""
        self.counted += n_documents

    def cancel(self) -> None:
        """Note it."""
        self.n_cancelled += 1


def opened(route: GpuRoute, found: Found, kind: str = "") -> ShortWay:
    """The way of the rig's model."""
    text = route.reserve(MODEL, LONG)
    assert text is not None
    assert text.lease is not None
    text.lease.way.open(Finding(("this",), kind, LONG // 2, 2 * LONG, found))
    return text.lease.way


def take(rig: Rig, way: ShortWay, text: bytes = text_of()) -> list[EncodedGroup] | None:
    """Where the results will be; None if the text is not taken."""
    reserved, results = rig.route.reserve(MODEL, len(text)), list[Any]()
    assert reserved is not None
    assert reserved.lease is not None
    reserved.data[:] = text
    call = way.take(reserved, reserved.lease, lambda result, error: results.append(result), ("this",))
    return None if call is None else results


def test_it_closes_after_a_while() -> None:
    """Then costs are observed and the route is chosen again."""
    rig = Rig(n_each=6)
    way, end_ns = opened(rig.route, Found(rig)), rig.simulation.now_ns + OPEN_NS
    rig.run(end_ns - 1)
    assert take(rig, way) is not None
    rig.run(end_ns)
    assert take(rig, way) is None
    assert len(rig.engine.launches) == 1


def test_only_texts_of_its_kind() -> None:
    """Where the choice rested on the content."""
    rig, wide = Rig(n_each=8), "é".encode() * (LONG // 2)
    way = opened(rig.route, Found(rig), "ascii")
    assert take(rig, way, wide) is None
    assert take(rig, way) is not None
    opened(rig.route, Found(rig), "wide")
    assert take(rig, way, wide) is not None
    assert take(rig, way) is not None


def test_nothing_is_launched_beside_others() -> None:
    """While a replay that documents share is under way, or as many texts as there may be."""
    rig = Rig(n_each=8)
    way = opened(rig.route, Found(rig))
    rig.submit(b"short")
    assert rig.engine.n_running == 1
    assert take(rig, way) is None
    rig.run()
    results = [take(rig, way) for _ in range(MAX_FLIGHTS + 1)]
    assert [result is not None for result in results] == [True] * MAX_FLIGHTS + [False]
    rig.submit(b"short")
    rig.run()
    assert [[bytes(group.ids[0])[::4] for group in result] for result in results if result is not None] == [
        [text_of()]
    ] * MAX_FLIGHTS
    assert len(rig.done) == 2


def test_beside_a_long_one_on_the_ordinary_way() -> None:
    """Launched at once: texts that overlap do not keep each other from the short way."""
    rig = Rig(n_each=8)
    way = opened(rig.route, Found(rig))
    rig.submit(text_of(seed=2))
    assert rig.engine.n_running == 1
    results = take(rig, way)
    assert results is not None
    assert rig.engine.n_running == 2
    rig.run()
    assert len(results) == len(rig.done) == 1


@pytest.mark.parametrize("n_bytes", [LONG // 2 - 1, 2 * LONG + 1])
def test_only_texts_of_about_its_size(n_bytes: int) -> None:
    """Others may be faster elsewhere."""
    rig = Rig(n_each=6, limits=RouteLimits(alone_over_bytes=1000))
    way = opened(rig.route, Found(rig))
    assert take(rig, way, text_of(n_bytes)) is None
    assert take(rig, way) is not None


def test_one_way_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that ask first get the same: what it notes is counted."""
    rig = Rig(n_each=6)
    incarnation = rig.route._incarnation
    assert incarnation is not None
    queue = incarnation.queue_of(MODEL)
    assert queue is not None
    made: list[ShortWay] = []

    def make_slowly(ways: ShortWays, queue: ModelQueue) -> ShortWay:
        barrier.append(1)
        until(lambda: len(barrier) == 2 or second.is_alive())
        return ShortWay(ways, queue)

    barrier: list[int] = []
    monkeypatch.setattr("dispatcher.gpu.short_ways.ShortWay", make_slowly)
    second = threading.Thread(target=lambda: made.append(incarnation.short.of(queue)))
    second.start()
    made.append(incarnation.short.of(queue))
    second.join()
    assert made[0] is made[1]


class Racing(dict[int, Flight]):
    """The texts under way, while another thread does something in the middle of each look at all of them."""

    between: Callable[[], object] = int

    def __iter__(self) -> Iterator[int]:
        numbers = list(super().__iter__())
        self.between()
        return iter(numbers)

    def popitem(self) -> tuple[int, Flight]:
        """See `dict`."""
        self.between()
        return super().popitem()


def test_the_engine_ends_while_another_thread_answers() -> None:
    """What that one took is its own, and the rest falls back."""
    rig = Rig(n_each=6)
    way = opened(rig.route, Found(rig))
    results = [take(rig, way), take(rig, way)]
    incarnation = rig.route._incarnation
    assert incarnation is not None
    short = incarnation.short
    racing = short.flights = Racing(short.flights)

    def answer() -> None:
        racing.between = int
        number = next(iter(racing))
        slot = racing[number][3].slot
        for flight_number in list(racing):
            assert short.ended([Completion(racing[flight_number][3].slot, 0, 1, 0)]) == []
        assert slot.number == number

    racing.between = answer
    rig.engine.lose()
    rig.route.turn(0.0)
    assert [len(told) for told in results if told is not None] == [1, 1]
    assert rig.fallen == []
    assert not rig.route.ready


@pytest.mark.parametrize("n_more", [0, 2])
def test_a_turn_while_others_launch_or_answer(n_more: int) -> None:
    """It sees one text, and there are none, or more."""
    rig = Rig(n_each=8)
    way = opened(rig.route, Found(rig))
    incarnation = rig.route._incarnation
    assert incarnation is not None
    short = incarnation.short
    short._wait_one = lambda number, timeout_s: -1
    assert take(rig, way) is not None
    racing = short.flights = Racing(short.flights)

    def change() -> None:
        racing.between = int
        for _ in range(n_more):
            assert take(rig, way) is not None
        if not n_more:
            racing.clear()

    racing.between = change
    assert not short.turn(0.0)
    assert len(racing) == (1 + n_more if n_more else 0)


@pytest.mark.parametrize("is_early", [True, False])
def test_cancelling_reaches_the_ordinary_way(is_early: bool) -> None:
    """Whether it went there before or goes there later."""
    rig = Rig(n_each=6)
    found = Found(rig)
    way = opened(rig.route, found)
    text = rig.route.reserve(MODEL, LONG)
    assert text is not None
    assert text.lease is not None
    call = way.take(text, text.lease, lambda result, error: None, ("this",))
    assert call is not None
    if is_early:
        call.cancel()
    rig.engine.lose()
    rig.run()
    assert [reason for _group, reason in rig.fallen] == ["engine lost"]
    if not is_early:
        call.cancel()
    assert found.n_cancelled == 1


def test_a_hung_replay_is_noticed() -> None:
    """The route gives the engine up after its time, as with any replay."""
    rig = Rig(n_each=6)
    found = Found(rig)
    way = opened(rig.route, found)
    rig.engine.is_hung = True
    assert take(rig, way) is not None
    for _ in range(40):
        rig.run(rig.simulation.now_ns + 100_000_000)
        rig.route.turn(0.0)
    assert [(group.n_bytes, reason) for group, reason in rig.fallen] == [(LONG, "engine silent")]
    assert take(rig, way) is None if rig.route.ready else True


def encode(local: Local, tokenizer: Tokenizer, text: bytes) -> tuple[bytes, str, bool]:
    """Ids of a reserved text, the route, and whether it took the short way."""
    results: list[EncodedGroup] = []
    reserved = local.dispatcher.reserve(tokenizer, len(text))
    reserved.data[:] = text
    call = local.dispatcher.encode_group(tokenizer, [reserved], lambda result, error: results.append(result), PLAIN)  # type: ignore[arg-type]
    local.until(lambda: bool(results))
    return bytes(results[0].ids[0]), results[0].route, isinstance(call, ShortCall)


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
@pytest.mark.parametrize("driven", [True, False])
def test_short_on_an_engine_of_this_process(
    make: Callable[..., Local],
    synthetic: Tokenizer,
    driven: bool,
    always: None,
) -> None:
    """Exact; driven, with a wait of its own. Another thread of the route may be busy when the next text comes."""
    local = make(driven, replay_s=0.0002)
    local.until(lambda: local.serves)
    shorts = []
    for seed in range(12):
        text = text_of(LONG - 50 * seed, seed)
        ids, route, is_short = encode(local, synthetic, text)
        assert (ids, route) == (synthetic.encode([text.decode()], PLAIN)[0].ids, "gpu")
        shorts.append(is_short)
    assert shorts == [False, *[True] * 11] if driven else any(shorts)
    assert local.dispatcher.snapshot().work[WorkKey("", "gpu")].n_documents == 12


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_a_text_that_the_device_leaves(make: Callable[..., Local], synthetic: Tokenizer) -> None:
    """Seen by the lean wait, answered by the CPU route."""
    local = make(replay_s=0.0002)
    local.until(lambda: local.serves)
    for _ in range(3):
        encode(local, synthetic, text_of())
    errors: list[Any] = []
    reserved = local.dispatcher.reserve(synthetic, LONG)
    reserved.data[:] = b"\xff" + text_of(LONG - 1)
    local.dispatcher.encode_group(synthetic, [reserved], lambda result, error: errors.append(error), PLAIN)
    local.until(lambda: bool(errors))
    assert "not UTF-8" in str(errors[0])
    assert encode(local, synthetic, text_of(seed=9))[1] == "gpu"


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_short_ends_with_its_device(make: Callable[..., Local], synthetic: Tokenizer, tmp_path: Path) -> None:
    """It fails at a launch: that text, and all that come later, take the CPU route."""
    local = make(replay_s=0.0002, fail_after=5)
    local.until(lambda: local.serves)
    expected = synthetic.encode([text_of().decode()], PLAIN)[0].ids
    routes = []
    for _ in range(10):
        ids, route, _is_short = encode(local, synthetic, text_of())
        assert ids == expected
        routes.append(route)
    assert routes[0] == "gpu"
    assert routes[-1] == "cpu"
    assert routes == sorted(routes, reverse=True)
