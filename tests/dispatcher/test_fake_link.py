"""The scripted engine does what a real one would, or breaks as it is told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dispatcher.gpu.fake_link import POISON, FakeEngine, Simulation, make_slots
from dispatcher.gpu.link import EngineLost, Slot
from gpu_core.ladder import SizeClass
from gpu_core.layout import FLAG_IDS

SIZES = (SizeClass(64, 4), SizeClass(256, 8))


def fill(slot: Slot, *documents: bytes) -> tuple[int, int]:
    """Write documents to a slot; bytes and number."""
    text = b"".join(documents)
    slot.text[: len(text)] = text
    ends = np.cumsum([0, *map(len, documents)])
    slot.document_starts[: len(ends)] = ends
    return len(text), len(documents)


def test_time_passes_only_when_it_runs() -> None:
    """Actions run in order of their time, those of one moment in the order in which they were asked for."""
    simulation = Simulation()
    seen: list[tuple[str, int]] = []
    simulation.at(30, lambda: seen.append(("late", simulation.now_ns)))
    simulation.at(10, lambda: simulation.after(5, lambda: seen.append(("then", simulation.now_ns))))
    simulation.at(10, lambda: seen.append(("same", simulation.now_ns)))
    simulation.at(0, lambda: seen.append(("past", simulation.now_ns)))
    assert not seen
    simulation.run(20)
    assert (seen, simulation.clock()) == ([("past", 1), ("same", 10), ("then", 15)], 20)
    simulation.run()
    assert seen[-1] == ("late", 30)


def test_a_replay_ends_when_its_time_has_come() -> None:
    """Results are there then, and nothing before."""
    simulation = Simulation()
    engine = FakeEngine(simulation, {"m": make_slots("m", SIZES)}, replay_ns=lambda n_bytes, n: 100 * n + n_bytes)
    slot = engine.slots("m")[0]
    n_bytes, n = fill(slot, b"ab", b"", b"c")
    engine.launch(slot, n_bytes, n, FLAG_IDS)
    assert (engine.n_running, engine.wait(0)) == (1, [])
    simulation.run(303)
    assert engine.wait(0) == []
    assert slot.ids[0] == slot.document_tokens[0] == POISON
    simulation.run(304)
    (completion,) = engine.wait(0)
    assert (completion.slot, completion.n_tokens, completion.replay_ns) == (slot, 3, 303)
    assert slot.document_tokens[:4].tolist() == [0, 2, 2, 3]
    assert slot.ids[:3].tolist() == [*b"abc"]
    assert engine.launches == [(slot.number, 3, 3, FLAG_IDS)]


@pytest.mark.parametrize(("n_lanes", "ends"), [(1, [100, 200, 300]), (2, [100, 100, 200])])
def test_lanes_run_side_by_side(n_lanes: int, ends: list[int]) -> None:
    """One replay after the other, or some at a time."""
    simulation = Simulation()
    engine = FakeEngine(simulation, {"m": make_slots("m", SIZES)}, replay_ns=lambda *_: 100, n_lanes=n_lanes)
    seen: list[int] = []
    engine.on_due = lambda: seen.extend(simulation.now_ns - 1 for _ in engine.wait(0))
    for slot in engine.slots("m")[:3]:
        engine.launch(slot, *fill(slot, b"x"), FLAG_IDS)
    simulation.run()
    assert seen == ends


def test_scripted_answers() -> None:
    """Documents for the CPU have no ids; counts leave the ids alone; another encoder has other ids."""
    simulation = Simulation()
    engine = FakeEngine(
        simulation,
        {"m": make_slots("m", SIZES)},
        encode=lambda document: np.full(1, len(document), np.uint32),
        needs_cpu=lambda document: "odd" if document == b"!" else None,
    )
    slot = engine.slots("m")[0]
    engine.launch(slot, *fill(slot, b"abc", b"!", b"de"), FLAG_IDS)
    (completion,) = engine.wait(0)
    assert (completion.n_tokens, completion.needs_cpu) == (2, {1: "odd"})
    assert slot.document_tokens[:4].tolist() == [0, 1, 1, 2]
    assert slot.ids[:2].tolist() == [3, 2]
    engine.launch(slot, *fill(slot, b"abc"), 0)
    (completion,) = engine.wait(0)
    assert (completion.n_tokens, int(slot.ids[0])) == (1, POISON)


@pytest.mark.parametrize("fault", ["starts", "bytes", "documents"])
def test_a_launch_that_a_real_engine_would_refuse(fault: str) -> None:
    """Whoever fills slots wrongly is told."""
    engine = FakeEngine(Simulation(), {"m": make_slots("m", SIZES)})
    slot = engine.slots("m")[0]
    n_bytes, n = fill(slot, b"ab", b"c")
    if fault == "starts":
        slot.document_starts[1] = 9
    with pytest.raises(ValueError, match="refuse"):
        engine.launch(slot, n_bytes + 100 * (fault == "bytes"), n + 9 * (fault == "documents"), FLAG_IDS)


def test_a_lost_engine() -> None:
    """Launches and waits raise, now or after so many launches; it is not ready."""
    engine = FakeEngine(Simulation(), {"m": make_slots("m", SIZES)})
    slot = engine.slots("m")[0]
    size = fill(slot, b"x")
    engine.lose_after(1)
    engine.launch(slot, *size, FLAG_IDS)
    with pytest.raises(EngineLost):
        engine.launch(engine.slots("m")[1], *size, FLAG_IDS)
    assert not engine.ready
    with pytest.raises(EngineLost):
        engine.wait(0)


def test_a_hung_engine_says_nothing() -> None:
    """Until it goes on."""
    simulation = Simulation()
    engine = FakeEngine(simulation, {"m": make_slots("m", SIZES)})
    slot = engine.slots("m")[0]
    engine.is_hung = True
    engine.launch(slot, *fill(slot, b"x"), FLAG_IDS)
    simulation.run(10**12)
    assert engine.wait(0) == []
    engine.is_hung = False
    assert len(engine.wait(0)) == 1


def test_a_slow_start() -> None:
    """It is not ready before its time, and refuses launches."""
    simulation = Simulation()
    engine = FakeEngine(simulation, {"m": make_slots("m", SIZES)}, ready_ns=100)
    slot = engine.slots("m")[0]
    with pytest.raises(EngineLost):
        engine.launch(slot, *fill(slot, b"x"), FLAG_IDS)
    simulation.run(100)
    assert engine.ready


@pytest.mark.parametrize("wakes", ["launch", "interrupt", "lose"])
def test_in_real_time_wait_blocks(wakes: str) -> None:
    """Until a completion, an interrupt or the end."""
    engine = FakeEngine(None, {"m": make_slots("m", SIZES)})
    slot = engine.slots("m")[0]
    size = fill(slot, b"x")
    ended: list[object] = []

    def wait() -> None:
        try:
            ended.append(len(engine.wait(None)))
        except EngineLost:
            ended.append("lost")

    thread = threading.Thread(target=wait)
    thread.start()
    if wakes == "launch":
        engine.launch(slot, *size, FLAG_IDS)
    elif wakes == "interrupt":
        engine.interrupt()
    else:
        engine.lose()
    thread.join(20)
    assert ended == [{"launch": 1, "interrupt": 0, "lose": "lost"}[wakes]]
