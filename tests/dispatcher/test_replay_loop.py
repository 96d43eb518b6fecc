"""The loop of an engine process, its streams held by the test."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from dispatcher.gpu.engine_models import EngineSlot, Model, ModelLoader
from dispatcher.gpu.messages import COMPLETED, LAUNCH, SLOT_BITS, Loaded, Unload
from dispatcher.gpu.replay_loop import ReplayLoop, _Replay
from gpu_core.ladder import SizeClass
from gpu_core.waiting import SILENT_NS, SLACK, Prediction
from tests.fakes import LIMIT_S


class InstantContext:
    """A context whose replays are complete at once."""

    size = SizeClass(4096, 64)
    in_normal_form = False

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """Nothing to wait for."""

    def poll(self, n_times: int) -> bool:
        """Complete."""
        return True

    def any_flagged(self) -> bool:
        """No document needs the CPU."""
        return False

    def n_tokens(self) -> int:
        """As many as nobody would make up."""
        return 77


class SmallModel(Model):
    """One slot, no device, and whether it was freed."""

    def __init__(self) -> None:
        self.number = 3
        slot = EngineSlot(cast(Any, InstantContext()), Prediction(), Prediction())
        self.slots = {self.number << SLOT_BITS: slot}
        self.report = Loaded(self.number, frozenset({0}), 0, 1, 0)
        self.freed = threading.Event()

    def free(self) -> None:
        """Note it."""
        self.freed.set()


class LateLaunch(deque[Any]):
    """News of which a launch is sent at the last moment before the order to unload is seen."""

    def __init__(self, frontend: socket.socket, packet: bytes) -> None:
        super().__init__()
        self._frontend, self._packet = frontend, packet

    def popleft(self) -> Any:
        """The next news."""
        item = super().popleft()
        if isinstance(item, Unload):
            self._frontend.send(self._packet)
        return item


class Loader:
    """News from the test."""

    def __init__(self, news: LateLaunch) -> None:
        self.news = news
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def run_loop(launches: socket.socket, control: socket.socket, loader: ModelLoader) -> None:
    """What the thread of a loop does."""
    ReplayLoop(launches, control, loader).run()


class Running:
    """A loop on a thread of its own, and the ends of its streams that a frontend has."""

    def __init__(
        self, late_packet: bytes = b"", run: Callable[[socket.socket, socket.socket, ModelLoader], None] = run_loop
    ) -> None:
        """`late_packet`: what `LateLaunch` sends."""
        self.frontend, self._launches = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reports, self._control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.loader = Loader(LateLaunch(self.frontend, late_packet))
        arguments = self._launches, self._control, cast(ModelLoader, self.loader)
        self._thread = threading.Thread(target=run, args=arguments)

    def __enter__(self) -> Running:
        self.frontend.settimeout(LIMIT_S)
        self._thread.start()
        os.eventfd_write(self.loader.wake_fd, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.frontend.close()
        self._thread.join(LIMIT_S)
        for end in (self._launches, self.reports, self._control):
            end.close()
        os.close(self.loader.wake_fd)
        assert not self._thread.is_alive()


def test_a_launch_that_was_sent_before_an_unload_is_answered() -> None:
    """The two come by different streams; whichever is looked at first, the replay runs and then the model is freed."""
    model = SmallModel()
    (slot,) = model.slots
    running = Running(LAUNCH.pack(slot, 0, 9, 5, 1))
    running.loader.news += [model, Unload(model.number)]
    with running:
        number, n_tokens, epoch, *_ = COMPLETED.unpack(running.frontend.recv(1 << 12))
        assert (number, n_tokens, epoch) == (slot, 77, 9)
        assert model.freed.wait(LIMIT_S)


class GoingOn(InstantContext):
    """A context of which one document needs the CPU until a second replay was launched."""

    def __init__(self) -> None:
        self.n_left, self.n_second = 0, 0

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """One of the documents is not in normal form, or none of one byte."""
        self.n_left, self.in_normal_form = int(n_bytes > 1), False

    def launch_normalized(self) -> bool:
        """Answers it."""
        was_left, self.n_left = self.n_left, 0
        self.n_second += was_left
        self.in_normal_form = bool(was_left)
        return bool(was_left)

    def any_flagged(self) -> bool:
        """Until then."""
        return bool(self.n_left)


class NotedPrediction(Prediction):
    """Notes the sizes of what it learned from."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def seen(self, n_bytes: int, took_ns: int, is_bound: bool) -> None:
        """Note it."""
        assert took_ns >= 0
        self.sizes.append(n_bytes)


def test_a_second_replay_is_no_message_of_its_own() -> None:
    """The frontend hears of both at once, with the time of both; how long each takes is learned apart."""
    model, context = SmallModel(), GoingOn()
    ((number, slot),) = model.slots.items()
    slot.context, slot.prediction, slot.of_normal_form = cast(Any, context), NotedPrediction(), NotedPrediction()
    running = Running()
    running.loader.news.append(model)
    with running:
        assert running.reports.recv(1 << 12)
        for epoch, n_bytes in enumerate((5, 1, 9), 1):
            running.frontend.send(LAUNCH.pack(number, 0, epoch, n_bytes, 1))
            completed = COMPLETED.unpack(running.frontend.recv(1 << 12))
            assert (completed[2], completed[5], completed[6]) == (epoch, 0, int(n_bytes > 1))
    assert context.n_second == 2
    assert slot.prediction.sizes == [5, 1, 9]
    assert slot.of_normal_form.sizes == [5, 9]


def test_a_second_replay_is_waited_for_from_its_own_launch() -> None:
    """However long ago the first one was launched, and by what is known of second ones."""
    launches, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    model, context, began_ns = SmallModel(), GoingOn(), 5
    ((number, slot),) = model.slots.items()
    slot.context, slot.prediction, slot.of_normal_form = cast(Any, context), Prediction(), FixedPrediction()
    context.launch(9, 1, 0, False)
    loader = Loader(LateLaunch(launches, b""))
    loop = ReplayLoop(launches, control, cast(ModelLoader, loader))
    replay = _Replay(number, slot, 1, 9, 1, began_ns, slot.prediction, launched_ns=began_ns)
    before_ns = time.perf_counter_ns()
    assert loop._goes_on(replay)
    assert before_ns <= replay.launched_ns <= time.perf_counter_ns()
    assert replay.due_ns - replay.launched_ns == int(200_000 * (1 - SLACK))
    assert replay.patience_ns - replay.launched_ns == 200_000 + SILENT_NS
    assert (replay.prediction, replay.began_ns) == (slot.of_normal_form, began_ns)
    assert not loop._goes_on(replay)
    for end in (launches, control):
        end.close()
    os.close(loader.wake_fd)


class FixedPrediction(Prediction):
    """Long enough for a nap, whatever is seen."""

    def of(self, n_bytes: int) -> float:
        """In nanoseconds."""
        return 200_000.0

    def seen(self, n_bytes: int, took_ns: int, at_first_look: bool) -> None:
        """Nothing is learned."""


def test_naps_are_tried_again_after_a_bad_spell() -> None:
    """Naps that ended far too late end all napping only for a while: every one that is left out is a doubt."""
    model = SmallModel()
    ((number, slot),) = model.slots.items()
    slot.prediction = FixedPrediction()
    learned, doubted = 10_000_000.0, []

    def run(launches: socket.socket, control: socket.socket, loader: ModelLoader) -> None:
        loop = ReplayLoop(launches, control, loader)
        loop._lateness.ns = learned
        loop.run()
        doubted.append(loop._lateness.ns)

    running = Running(run=run)
    running.loader.news.append(model)
    with running:
        assert running.reports.recv(1 << 12)
        for epoch in range(1, 101):
            running.frontend.send(LAUNCH.pack(number, 0, epoch, 5, 1))
            assert COMPLETED.unpack(running.frontend.recv(1 << 12))[2] == epoch
    assert doubted[0] < 0.8 * learned
