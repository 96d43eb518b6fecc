"""Text that an engine brings into normal form at once: what it answers, and when it is waited for and reported."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.gpu.engine_models import EngineSlot
from dispatcher.gpu.link import EngineLink
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.messages import COMPLETED, LAUNCH
from dispatcher.gpu.replay_loop import ReplayLoop
from dispatcher.gpu.table_builder import read_tables
from gpu_core.doubts import EXPLORED
from gpu_core.ladder import SizeClass
from gpu_core.layout import FLAG_DECIMALS, FLAG_IDS
from gpu_core.waiting import SILENT_NS, SLACK, Prediction
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import LIMIT_S, OPTIONS, model, put, running_link, tables_fd, wrong_documents

LEFT = "\u1100\u1161"
BATCHES = (["cafe\u0301 two", LEFT, "", "plain", "e\u0301" * 9], ["plain", "cafe\u0301 nine", LEFT, "s cafe\u0301" * 3])
"""Of documents whose number changes while the length of their text stays about the same."""


@contextmanager
def engine(kind: str, folder: Path) -> Iterator[EngineLink]:
    """One of its own process or of this one, with a tokenizer that brings text into normal form at once."""
    script: dict[str, Any] = {"quick_check": True, "normalizes": True, "at_once": True}
    with ExitStack() as stack:
        if kind == "process":
            yield stack.enter_context(running_link(folder, "split_bpe", **script))
            return
        path, which = folder / "split.json", model("split_bpe")
        path.write_bytes(which.data)
        link = LocalLink(HostEngine({which.key: str(path)}, **script).gpu(OPTIONS), OPTIONS)
        stack.callback(link.close)
        link.load(which.key, read_tables(os.dup(tables_fd("split_bpe"))))
        yield link


@pytest.mark.parametrize("kind", ["process", "in process"])
def test_answers_are_the_same(tmp_path: Path, kind: str) -> None:
    """Ids, counts, decimals, what is left, told once: after four replays for nothing, and but for one in so many."""
    which = model("split_bpe")
    with engine(kind, tmp_path) as link:
        slots = link.slots(which.key)
        for n in range(3 * EXPLORED):
            slot, documents = slots[n % len(slots)], [text.encode() for text in BATCHES[n // 3 % 2]]
            flags = (FLAG_IDS, FLAG_DECIMALS, 0)[n % 3]
            slot.ids[:40] = 7
            link.launch(slot, *put(slot, documents), flags)
            (done,) = link.wait(LIMIT_S)
            expected = [[] if text.decode() == LEFT else which.ids(text) or [] for text in documents]
            tokens = slot.document_tokens[: len(documents) + 1].tolist()
            assert [end - start for start, end in pairwise(tokens)] == list(map(len, expected))
            assert done.n_tokens == tokens[-1]
            n_left = [i for i, text in enumerate(documents) if text.decode() == LEFT]
            assert list(done.needs_cpu) == n_left
            if flags:
                assert wrong_documents(done, documents, which) == n_left
            else:
                assert set(slot.ids[:40].tolist()) == {7}
            if flags & FLAG_DECIMALS:
                written = slot.decimals[: slot.document_decimals[len(documents)]]
                assert bytes(written).decode() == "".join(f"{token}," for ids in expected for token in ids)
            assert done.n_second == int(n < 4 or (n - 3) % EXPLORED == 0)
            assert link.wait(0.0) == []


class Clock:
    """Time that passes where the test says so."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def perf_counter_ns(self) -> int:
        """Now."""
        return self.now_ns

    def thread_time_ns(self) -> int:
        """Of no account."""
        return 0


class SlowLaunch:
    """A context whose launches take 50 us. Its text is `plain`, or `left` by first replays, or goes `at once`."""

    size = SizeClass(4096, 64)

    def __init__(self, clock: Clock, kind: str, first: socket.socket | None = None) -> None:
        """`first`: where others must have been reported when a second one is launched."""
        self._clock, self._first = clock, first
        self._is_left, self.in_normal_form = kind == "left", kind == "at once"
        self.is_complete = False
        self.heard = b""

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """Takes time."""
        self._clock.now_ns += 50_000
        self.is_complete = False

    def launch_normalized(self) -> bool:
        """Answers all."""
        if self._first is not None:
            self.heard = self._first.recv(1 << 12)
        self.launch(0, 0, 0, False)
        self._is_left, self.in_normal_form = False, True
        return True

    def poll(self, n_times: int) -> bool:
        """When the test says so."""
        return self.is_complete

    def any_flagged(self) -> bool:
        """Of the first one."""
        return self._is_left

    def n_tokens(self) -> int:
        """Some."""
        return 3


class Loop:
    """The loop of an engine process with a clock of its own; the test takes its steps."""

    def __init__(self, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr("dispatcher.gpu.replay_loop.time", self.clock)
        self.frontend, launches = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.frontend, launches):
            stack.callback(end.close)
        self.frontend.setblocking(False)
        self.loop = ReplayLoop(launches, launches, cast(Any, SimpleNamespace(wake_fd=launches.fileno())))

    def add(self, number: int, context: SlowLaunch) -> EngineSlot:
        """A slot, of whose replays it is known that they take 100 us, and 400 us in normal form."""
        slot = EngineSlot(cast(Any, context), Prediction(), Prediction())
        slot.prediction.seen(9, 100_000, False)
        slot.of_normal_form.seen(9, 400_000, False)
        self.loop._slots[number] = slot
        return slot

    def launch(self, number: int) -> None:
        """A replay."""
        self.frontend.send(LAUNCH.pack(number, 0, 1, 9, 1))
        assert self.loop._take_launch()

    def completed(self) -> list[tuple[int, int, int]]:
        """Number, time and second replays of what is reported next."""
        told = [COMPLETED.unpack(self.frontend.recv(1 << 12))]
        return [(number, took_ns, n_second) for number, _tokens, _epoch, took_ns, _cpu, _left, n_second in told]


def test_the_time_of_both_replays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """From when the launch of the first one began until the second one was seen to be complete."""
    with ExitStack() as stack:
        loop = Loop(stack, monkeypatch)
        context = SlowLaunch(loop.clock, "left")
        slot = loop.add(4, context)
        loop.launch(4)
        for took_ns in (90_000, 380_000):
            loop.clock.now_ns += took_ns
            context.is_complete = True
            loop.loop._look(False)
        assert loop.completed() == [(4, 50_000 + 90_000 + 50_000 + 380_000, 1)]
        assert slot.prediction.of(9) == 100_000 + 0.125 * 40_000
        assert slot.of_normal_form.of(9) == 400_000 - 0.5 * 20_000
        assert not slot.busy


def test_normal_form_at_once_is_predicted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is known of replays in normal form, and from when it was launched, because that may have taken memory."""
    with ExitStack() as stack:
        loop = Loop(stack, monkeypatch)
        context = SlowLaunch(loop.clock, "at once")
        slot, began_ns = loop.add(4, context), loop.clock.now_ns
        loop.launch(4)
        (replay,) = loop.loop._flying
        assert (replay.began_ns, replay.launched_ns) == (began_ns, began_ns + 50_000)
        assert replay.due_ns - replay.launched_ns == int(400_000 * (1 - SLACK))
        assert replay.patience_ns - replay.launched_ns == 400_000 + SILENT_NS
        loop.clock.now_ns += 380_000
        context.is_complete = True
        loop.loop._look(False)
        assert loop.completed() == [(4, 430_000, 0)]
        assert slot.prediction.of(9) == 100_000
        assert slot.of_normal_form.of(9) == 390_000


def test_others_are_reported_before_a_second_replay_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes time, for which they need not wait."""
    with ExitStack() as stack:
        loop = Loop(stack, monkeypatch)
        contexts = {
            3: SlowLaunch(loop.clock, "left", loop.frontend),
            5: SlowLaunch(loop.clock, "plain"),
        }
        slots = {number: loop.add(number, context) for number, context in contexts.items()}
        for number, context in contexts.items():
            loop.launch(number)
            context.is_complete = True
        loop.loop._look(False)
        assert COMPLETED.unpack(contexts[3].heard)[0] == 5
        assert [replay.number for replay in loop.loop._flying] == [3]
        assert (slots[3].busy, slots[5].busy) == (True, False)
