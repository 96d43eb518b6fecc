"""A link over real engine processes: answers, overlap, and every way in which an engine can end."""

import gc
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from dispatcher.gpu.link import EngineLost
from dispatcher.gpu.messages import Fault, Loaded, Refused
from dispatcher.gpu.process_link import ProcessLink
from gpu_core.layout import FLAG_IDS
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import (
    LIMIT_S,
    OPTIONS,
    added,
    completions,
    crowded,
    engine_command,
    holdings,
    is_alive,
    launch,
    mixed_batch,
    model,
    put,
    running_link,
    tables_fd,
    until,
    wrong_documents,
)

NEVER = 1 << 62


def test_a_thousand_replays_of_changing_sizes(tmp_path: Path) -> None:
    """Every document of every batch gets the reference's ids, or is named as one for the CPU with a reason."""
    rng = random.Random(5)
    with running_link(tmp_path) as link:
        slots = link.slots(model().key)
        assert [slot.size.capacity for slot in slots] == [4096, 4096, 65536, 65536]
        n_flagged = 0
        for _ in range(1000):
            slot = rng.choice(slots[:2]) if rng.random() < 0.95 else rng.choice(slots)
            batch = mixed_batch(rng, slot)
            launch(link, slot, batch)
            completion = completions(link, 1)[slot.number]
            assert wrong_documents(completion, batch, model()) == []
            assert completion.n_tokens == slot.document_tokens[len(batch)]
            assert completion.replay_ns > 0
            n_flagged += len(completion.needs_cpu)
            assert set(completion.needs_cpu.values()) <= {"invalid UTF-8"}
        assert n_flagged > 10


def test_an_engine_that_starts_among_many_connections(tmp_path: Path) -> None:
    """It waits and answers like any other."""
    with crowded(), running_link(tmp_path, replay_s=0.001) as link:
        slot = link.slots(model().key)[0]
        for documents in ([b"one two"], [b"three", b""]):
            launch(link, slot, documents)
            assert wrong_documents(completions(link, 1)[slot.number], documents, model()) == []


def test_several_replays_in_flight(tmp_path: Path) -> None:
    """Replays of different slots and tokenizers are under way together, and complete in any order."""
    rng = random.Random(6)
    names = ("byte_bpe", "split_bpe")
    with running_link(tmp_path, *names, polls=200) as link:
        for _ in range(20):
            batches = {}
            for name in names:
                for slot in link.slots(model(name).key):
                    batches[slot.number] = mixed_batch(rng, slot), model(name)
                    launch(link, slot, batches[slot.number][0])
            done = completions(link, len(batches))
            assert done.keys() == batches.keys()
            for number, (batch, which) in batches.items():
                assert wrong_documents(done[number], batch, which) == []


def test_second_replays_in_flight(tmp_path: Path) -> None:
    """Text that is not in normal form is answered by the engine, one message for both replays; some of it is left."""
    rng, which = random.Random(7), model("split_bpe")
    left, n_composed = "\u1100\u1161", 0
    with running_link(tmp_path, "split_bpe", quick_check=True, normalizes=True, replay_s=0.0002) as link:
        slots = link.slots(which.key)
        for _ in range(60):
            batches = {}
            for slot in rng.sample(slots, 2):
                texts = [rng.choice(("plain", "cafe\u0301 two", left, "\u00e9")) for _ in range(rng.choice((1, 2, 50)))]
                batches[slot.number] = texts
                launch(link, slot, [text.encode() for text in texts])
            done = completions(link, 2)
            for number, texts in batches.items():
                n_left = [i for i, text in enumerate(texts) if text == left]
                assert list(done[number].needs_cpu) == n_left
                assert done[number].n_second == int(any(text not in {"plain", "\u00e9"} for text in texts))
                assert wrong_documents(done[number], [text.encode() for text in texts], which) == n_left
                n_composed += sum(text.startswith("cafe") for text in texts)
        assert n_composed > 100
        assert link.wait(0.0) == []


def test_counting_writes_no_ids(tmp_path: Path) -> None:
    """A replay that only counts leaves the ids alone and has the same numbers of tokens."""
    with running_link(tmp_path) as link:
        slot = link.slots(model().key)[0]
        slot.ids[:10] = 7
        launch(link, slot, [b"one two", b"three"], count_only=True)
        completion = completions(link, 1)[slot.number]
        assert slot.ids[:10].tolist() == [7] * 10
        assert completion.n_tokens == sum(len(model().ids(text) or []) for text in (b"one two", b"three"))


def test_interrupt_and_timeout(tmp_path: Path) -> None:
    """A wait ends without completions when it is interrupted, before or while it waits, and at its timeout."""
    with running_link(tmp_path) as link:
        link.interrupt()
        assert link.wait(None) == []
        threading.Timer(0.05, link.interrupt).start()
        assert link.wait(None) == []
        assert link.wait(0.001) == []


def test_idle_engines_take_no_cpu(tmp_path: Path) -> None:
    """An engine that has nothing to do sleeps; its CPU time can be read from outside."""
    with running_link(tmp_path) as link:
        assert link.cpu_ns() > 0

        def rests() -> bool:
            before = link.cpu_ns()
            assert link.wait(0.1) == []
            return link.cpu_ns() - before < 1e6

        until(rests)


def test_the_engine_sleeps_while_the_device_works(tmp_path: Path) -> None:
    """Once it knows how long replays take, waiting for one costs the engine a small part of that time."""
    with running_link(tmp_path, replay_s=0.01) as link:
        slot = link.slots(model().key)[0]

        def sleeps() -> bool:
            launch(link, slot, [b"one two"])
            completion = completions(link, 1)[slot.number]
            assert completion.replay_ns >= 10e6
            return completion.engine_cpu_ns < 3e6

        until(sleeps)


def test_a_launch_wakes_the_engine(tmp_path: Path) -> None:
    """A replay is started at once while the engine sleeps over another one, so that both overlap."""
    with running_link(tmp_path, replay_s=0.1) as link:
        first, second = link.slots(model().key)[:2]
        launch(link, first, [b"one"])
        completions(link, 1)

        def overlap() -> bool:
            begin = time.perf_counter()
            launch(link, first, [b"one"])
            # None, unless this thread did not run for so long that the replay is over.
            n_early = len(link.wait(0.02))
            launch(link, second, [b"two"])
            done = completions(link, 2 - n_early)
            assert wrong_documents(done[second.number], [b"two"], model()) == []
            return time.perf_counter() - begin < 0.18

        until(overlap)


def test_a_hung_replay_costs_little_cpu(tmp_path: Path) -> None:
    """An engine whose replay does not end looks at it now and then only."""
    with running_link(tmp_path, hang_after=0) as link:
        launch(link, link.slots(model().key)[0], [b"one"])

        def rests() -> bool:
            before = link.cpu_ns()
            assert link.wait(0.2) == []
            return link.cpu_ns() - before < 0.05e9

        until(rests)


@pytest.mark.parametrize("polls", [1, NEVER], ids=["between replays", "during a replay"])
def test_a_killed_engine_is_lost(tmp_path: Path, polls: int) -> None:
    """After kill -9 the next wait and the next launch say so, at once and from then on."""
    with running_link(tmp_path, polls=polls) as link:
        slot = link.slots(model().key)[0]
        launch(link, slot, [b"one"])
        if polls == 1:
            completions(link, 1)
        os.kill(link.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(EngineLost, match="the engine process ended"):
                link.wait(LIMIT_S)
        with pytest.raises(EngineLost):
            launch(link, slot, [b"two"])
        assert not link.ready


def test_a_hung_replay_can_be_told_and_killed(tmp_path: Path) -> None:
    """Whoever watches sees how long the replay takes; after the kill the waiting thread gets the reason."""
    with running_link(tmp_path, hang_after=1) as link:
        slot = link.slots(model().key)[0]
        launch(link, slot, [b"one"])
        completions(link, 1)
        assert link.longest_replay_s() == 0
        launch(link, slot, [b"two"])
        until(lambda: link.longest_replay_s() > 0.05)
        threading.Timer(0.05, link.kill, ["too slow"]).start()
        with pytest.raises(EngineLost, match="too slow"):
            link.wait(LIMIT_S)


def test_a_fault_of_the_device_ends_the_process(tmp_path: Path) -> None:
    """The reason comes over the control stream, and the process ends with a status of its own."""
    with running_link(tmp_path, fail_after=3) as link:
        slot = link.slots(model().key)[0]
        for _ in range(3):
            launch(link, slot, [b"one"])
            completions(link, 1)
        launch(link, slot, [b"one"])
        with pytest.raises(EngineLost):
            link.wait(LIMIT_S)
        assert link.next_report() == Fault(False, "the device is dead")
        assert link.close(LIMIT_S) == 3


def test_no_gpu_is_a_permanent_fault(tmp_path: Path) -> None:
    """An engine without a GPU says why, and that another start would not help."""
    link = ProcessLink(OPTIONS, engine_command(tmp_path, unavailable="CuPy is not installed"))
    link.start()
    assert link.next_report() == Fault(True, "CuPy is not installed")
    assert link.next_report() is None
    assert link.close(LIMIT_S) == 4


def test_less_memory_means_fewer_slots(tmp_path: Path) -> None:
    """Without memory for all classes the smaller ones are there; without any the tokenizer is refused, not the rest."""
    small = OPTIONS.size_classes_bytes[0]
    with running_link(tmp_path, memory_bytes=100_000) as link:
        assert {slot.size.capacity for slot in link.slots(model().key)} == {small}
    with running_link(tmp_path, "byte_bpe", memory_bytes=100) as link:
        assert link.slots(model().key) == ()
        assert "smallest size class" in link.refused[model().key]
        assert link.ready


def test_tokenizers_come_and_go(tmp_path: Path) -> None:
    """A tokenizer is loaded and unloaded while replays of another go on; its memory is given back."""
    rng = random.Random(7)
    with running_link(tmp_path, "byte_bpe", "split_bpe") as link:
        staying, leaving = model("byte_bpe"), model("split_bpe")
        slot = link.slots(staying.key)[0]
        before = holdings()
        for _ in range(3):
            late = link.slots(leaving.key)[0]
            launch(link, late, [b"one two"])
            link.unload(leaving.key)
            assert wrong_documents(completions(link, 1)[late.number], [b"one two"], leaving) == []
            del late
            assert link.slots(leaving.key) == ()
            link.load(leaving.key, tables_fd("split_bpe"))
            receiver = threading.Thread(target=link.next_report)
            receiver.start()
            while receiver.is_alive():
                batch = mixed_batch(rng, slot)
                launch(link, slot, batch)
                assert wrong_documents(completions(link, 1)[slot.number], batch, staying) == []
            assert len(link.slots(leaving.key)) == 4
        gc.collect()
        # That of the last load; the first one went.
        assert sum("arena" in name for name in added(before)) == 1
        assert sum("arena" in name for name, _inode in (before.files - holdings().files).elements()) >= 1


def test_nonsense_is_a_fault(tmp_path: Path) -> None:
    """A launch beyond the slot, or of a slot that is under way, ends the engine instead of harming memory."""
    for n_bytes, times in ((5000, 1), (3, 2)):
        with running_link(tmp_path, polls=NEVER) as link:
            slot = link.slots(model().key)[0]
            put(slot, [b"one"])
            for _ in range(times):
                link.launch(slot, n_bytes, 1, FLAG_IDS)
            report = link.next_report()
            assert isinstance(report, Fault)
            assert report.reason.startswith("a launch of slot 0")


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    """A tokenizer that cannot be loaded is refused; the others are served, and nothing of it stays open."""
    with running_link(tmp_path) as link:
        broken = tmp_path / "broken"
        broken.write_bytes(b"no tables")
        with broken.open("rb") as file:
            link.load("broken", file.fileno())
        report = link.next_report()
        assert isinstance(report, Refused)
        assert link.refused["broken"] == report.reason
        assert "while it was loaded" in report.reason
        slot = link.slots(model().key)[0]
        launch(link, slot, [b"one"])
        assert wrong_documents(completions(link, 1)[slot.number], [b"one"], model()) == []
        opened = [os.readlink(path) for path in Path(f"/proc/{link.pid}/fd").iterdir()]
        assert str(broken) not in opened
        assert sum("arena" in name for name in opened) == 1


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """After the end of a link no process, descriptor, memory or thread of it is left, however it ended."""
    for script in ({}, {"polls": NEVER}, {"fail_after": 0}, {"unavailable": "no GPU"}):
        with running_link(tmp_path):
            pass
        before = holdings()
        link = ProcessLink(OPTIONS, engine_command(tmp_path, **script))
        link.start()
        link.next_report()
        pid = link.pid
        if "unavailable" not in script:
            link.load(model().key, tables_fd("byte_bpe"))
            link.next_report()
            launch(link, link.slots(model().key)[0], [b"one"])
        assert link.close(LIMIT_S) is not None
        assert not is_alive(pid)
        del link
        gc.collect()
        assert added(before) == []


def test_closing_while_somebody_waits(tmp_path: Path) -> None:
    """A thread that waits gets `EngineLost` when the link is closed, and then its descriptors go."""
    with running_link(tmp_path) as link:
        reasons: list[str] = []

        def wait() -> None:
            try:
                link.wait(None)
            except EngineLost as error:
                reasons.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: link._waiting)
        assert link.close(LIMIT_S) == 0
        waiting.join()
        assert reasons == ["the engine was closed"]
        assert link.control.fileno() == -1


def test_many_tokenizers_on_one_engine(tmp_path: Path) -> None:
    """A dozen are loaded at once, answer side by side, and those that stay do so while others go."""
    keys = [f"{number:02}" for number in range(12)]
    which = model()
    (tmp_path / "byte_bpe.json").write_bytes(which.data)
    files = dict.fromkeys(keys, str(tmp_path / "byte_bpe.json"))
    link = ProcessLink(OPTIONS, HostEngine(files).command())
    try:
        link.start()
        link.next_report()
        for key in keys:
            link.load(key, tables_fd("byte_bpe"))
        until(lambda: isinstance(link.next_report(), Loaded) and len(link._slots) == len(keys))
        for left in (keys, keys[::3]):
            for key in set(link._slots) - set(left):
                link.unload(key)
            batches = {link.slots(key)[0].number: [f"text of {key}".encode(), b"one two"] for key in left}
            for key in left:
                launch(link, link.slots(key)[0], batches[link.slots(key)[0].number])
            done = completions(link, len(left))
            assert [wrong_documents(done[n], batches[n], which) for n in batches] == [[]] * len(left)
    finally:
        assert link.close(LIMIT_S) == 0
