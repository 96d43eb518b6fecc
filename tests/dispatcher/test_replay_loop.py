"""The loop of an engine process, its streams held by the test."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
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


def test_a_launch_that_was_sent_before_an_unload_is_answered() -> None:
    """The two come by different streams; whichever is looked at first, the replay runs and then the model is freed."""
    frontend, launches = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    model = SmallModel()
    (slot,) = model.slots
    loader = Loader(LateLaunch(frontend, LAUNCH.pack(slot, 0, 9, 5, 1)))
    loader.news += [model, Unload(model.number)]
    thread = threading.Thread(target=lambda: ReplayLoop(launches, control, cast(ModelLoader, loader)).run())
    thread.start()
    try:
        os.eventfd_write(loader.wake_fd, 1)
        frontend.settimeout(LIMIT_S)
        number, n_tokens, epoch, *_ = COMPLETED.unpack(frontend.recv(1 << 12))
        assert (number, n_tokens, epoch) == (slot, 77, 9)
        assert model.freed.wait(LIMIT_S)
    finally:
        frontend.close()
        thread.join(LIMIT_S)
        for end in (launches, reports, control):
            end.close()
        os.close(loader.wake_fd)
    assert not thread.is_alive()


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
    frontend, launches = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    model, context = SmallModel(), GoingOn()
    ((number, slot),) = model.slots.items()
    slot.context, slot.prediction, slot.of_normal_form = cast(Any, context), NotedPrediction(), NotedPrediction()
    loader = Loader(LateLaunch(frontend, b""))
    loader.news.append(model)
    thread = threading.Thread(target=lambda: ReplayLoop(launches, control, cast(ModelLoader, loader)).run())
    thread.start()
    try:
        os.eventfd_write(loader.wake_fd, 1)
        assert reports.recv(1 << 12)
        frontend.settimeout(LIMIT_S)
        for epoch, n_bytes in enumerate((5, 1, 9), 1):
            frontend.send(LAUNCH.pack(number, 0, epoch, n_bytes, 1))
            completed = COMPLETED.unpack(frontend.recv(1 << 12))
            assert (completed[2], completed[5], completed[6]) == (epoch, 0, int(n_bytes > 1))
    finally:
        frontend.close()
        thread.join(LIMIT_S)
        for end in (launches, reports, control):
            end.close()
        os.close(loader.wake_fd)
    assert not thread.is_alive()
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
    frontend, launches = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reports, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    model = SmallModel()
    ((number, slot),) = model.slots.items()
    slot.prediction = FixedPrediction()
    loader = Loader(LateLaunch(frontend, b""))
    loader.news.append(model)
    learned, doubted = 10_000_000.0, []

    def run() -> None:
        loop = ReplayLoop(launches, control, cast(ModelLoader, loader))
        loop._lateness.ns = learned
        loop.run()
        doubted.append(loop._lateness.ns)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        os.eventfd_write(loader.wake_fd, 1)
        assert reports.recv(1 << 12)
        frontend.settimeout(LIMIT_S)
        for epoch in range(1, 101):
            frontend.send(LAUNCH.pack(number, 0, epoch, 5, 1))
            assert COMPLETED.unpack(frontend.recv(1 << 12))[2] == epoch
    finally:
        frontend.close()
        thread.join(LIMIT_S)
        for end in (launches, reports, control):
            end.close()
        os.close(loader.wake_fd)
    assert not thread.is_alive()
    assert doubted[0] < 0.8 * learned
