"""The loop of an engine process: launch what arrives, wait without spinning for long, report what is complete.

    nothing under way       select without a timeout
    the next end is far     select with the predicted rest as timeout: a launch that arrives is enqueued at once
    the next end is near    look at the completion words and at the sockets by turns
    far too late            ask the driver whether the device still works, and sleep between looks

Wait and prediction are those of `gpu_core.waiting`, for several replays at a time.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from dataclasses import dataclass

import numpy as np

from dispatcher.gpu.engine_models import EngineSlot, Model, ModelLoader
from dispatcher.gpu.messages import (
    COMPLETED,
    COMPLETED_PER_PACKET,
    LAUNCH,
    SLOT_BITS,
    BadMessage,
    Refused,
    Unload,
    send_report,
)
from gpu_core.errors import DeviceFault
from gpu_core.waiting import (
    FIRST_WAKE_NS,
    MIN_SLEEP_NS,
    SILENT_NS,
    SLACK,
    TIMEOUT_NS,
    Lateness,
    Prediction,
    sharpen_sleep,
)

LOOKS = 32
"""Looks at completion words between two looks at the sockets."""
LATE_NAP_NS = 500_000
"""Time between looks at a replay that is much too late."""


@dataclass(slots=True, eq=False)
class _Replay:
    number: int
    slot: EngineSlot
    epoch: int
    n_bytes: int
    n_documents: int
    began_ns: int
    """When its launch began, ..."""
    prediction: Prediction
    n_second: int = 0
    """Replays behind it."""
    launched_ns: int = 0
    """... and when what is under way now was launched: that, or the second replay behind it. `prediction` is its."""
    due_ns: int = 0
    """When the next look is worth while."""
    patience_ns: int = 0
    """When the driver is asked."""

    def expect(self, began_ns: int) -> int:
        """What was launched from then until now takes as long as predicted; how long until a look is worth while."""
        slot, self.launched_ns = self.slot, began_ns
        self.prediction = slot.prediction
        if slot.context.in_normal_form:
            # Memory that the first one takes is no part of what replays take.
            self.launched_ns, self.prediction = time.perf_counter_ns(), slot.of_normal_form
        predicted = self.prediction.of(self.n_bytes)
        left = int(predicted * (1 - SLACK))
        self.due_ns, self.patience_ns = self.launched_ns + left, self.launched_ns + int(predicted) + SILENT_NS
        return left


class ReplayLoop:
    """All replays of one engine. Runs on the thread that makes it."""

    def __init__(self, launches: socket.socket, control: socket.socket, loader: ModelLoader) -> None:
        sharpen_sleep()
        launches.setblocking(False)
        self._launches, self._control, self._loader = launches, control, loader
        self._fds = (launches.fileno(), loader.wake_fd)
        self._models: dict[int, Model] = {}
        self._slots: dict[int, EngineSlot] = {}
        self._flying: list[_Replay] = []
        self._leaving: set[int] = set()
        self._lateness = Lateness()
        self._cpu_ns = time.thread_time_ns()

    def run(self) -> None:
        """Until the frontend is gone. Raises `DeviceFault` and `BadMessage`."""
        open_ = True
        while open_:
            slept, readable = self._rest()
            for fd in readable:
                if fd == self._loader.wake_fd:
                    self._take_news()
                else:
                    open_ = self._take_launch()
            if self._flying:
                self._look(slept)

    def _rest(self) -> tuple[bool, list[int]]:
        """Wait for what comes next; whether that took a sleep, and the descriptors that can be read."""
        if not self._flying:
            return False, select.select(self._fds, (), ())[0]
        before = time.perf_counter_ns()
        want = min(replay.due_ns for replay in self._flying) - before - self._lateness.ns
        if want < MIN_SLEEP_NS:
            return False, select.select(self._fds, (), (), 0)[0]
        readable = select.select(self._fds, (), (), want / 1e9)[0]
        if not readable:
            self._lateness.seen(time.perf_counter_ns() - before - want)
        return not readable, readable

    def _take_launch(self) -> bool:
        """Start a replay; False at the end of the stream."""
        packet = self._launches.recv(LAUNCH.size + 1)
        if not packet:
            return False
        if len(packet) != LAUNCH.size:
            raise BadMessage(f"a launch of {len(packet)} bytes")
        number, flags, epoch, n_bytes, n_documents = LAUNCH.unpack(packet)
        slot = self._slots.get(number)
        if slot is None or slot.busy or not slot.context.size.holds(n_bytes, n_documents):
            raise BadMessage(f"a launch of slot {number} with {n_bytes} bytes in {n_documents} documents")
        now = time.perf_counter_ns()
        slot.busy = True
        slot.context.launch(n_bytes, n_documents, flags, False)
        replay = _Replay(number, slot, epoch, n_bytes, n_documents, now, slot.prediction)
        self._expect(replay, now)
        self._flying.append(replay)
        return True

    def _expect(self, replay: _Replay, began_ns: int) -> None:
        left = replay.expect(began_ns)
        if MIN_SLEEP_NS + FIRST_WAKE_NS <= left < MIN_SLEEP_NS + self._lateness.ns:
            self._lateness.forget()

    def _look(self, slept: bool) -> None:
        """Look at every replay; report those that are complete and need no second one, and learn from all."""
        n_looks = 1 if slept else LOOKS // len(self._flying)
        done = [replay for replay in self._flying if replay.slot.context.poll(n_looks)]
        now = time.perf_counter_ns()
        if not done:
            self._doubt(now)
            return
        taken = [(replay, now - replay.launched_ns, replay.prediction) for replay in done]
        flagged = [replay for replay in done if replay.slot.context.any_flagged()]
        # To launch second replays takes time, for which the others need not wait.
        self._end([replay for replay in done if replay not in flagged], now)
        if flagged:
            self._end([replay for replay in flagged if not self._goes_on(replay)], now)
        for replay, took_ns, prediction in taken:
            prediction.seen(replay.n_bytes, took_ns, slept)
        if self._leaving:
            self._let_go()

    def _goes_on(self, replay: _Replay) -> bool:
        """Whether a second replay was launched behind one that is complete: the frontend hears of both at once."""
        began_ns = time.perf_counter_ns()
        if not replay.slot.context.launch_normalized():
            return False
        replay.n_second += 1
        self._expect(replay, began_ns)
        return True

    def _end(self, done: list[_Replay], now: int) -> None:
        """Report replays that nothing follows."""
        for first in range(0, len(done), COMPLETED_PER_PACKET):
            self._report(done[first : first + COMPLETED_PER_PACKET], now)
        self._flying = [replay for replay in self._flying if replay not in done]
        for replay in done:
            replay.slot.busy = False

    def _report(self, done: list[_Replay], now: int) -> None:
        flagged = [_n_flagged(replay) for replay in done]
        cpu_ns = time.thread_time_ns()
        share, self._cpu_ns = (cpu_ns - self._cpu_ns) // len(done), cpu_ns
        packet = b"".join(
            COMPLETED.pack(
                replay.number,
                replay.slot.context.n_tokens(),
                replay.epoch,
                now - replay.began_ns,
                share,
                n_flagged,
                replay.n_second,
            )
            for replay, n_flagged in zip(done, flagged, strict=True)
        )
        self._launches.send(packet)

    def _doubt(self, now: int) -> None:
        """Ask the driver about replays that are much too late, and look at them less often."""
        late = [replay for replay in self._flying if now > replay.patience_ns]
        for replay in late:
            replay.slot.context.alive()
            if now - replay.launched_ns > TIMEOUT_NS:
                raise DeviceFault(f"the device has not finished a replay within {TIMEOUT_NS // 10**9} seconds")
            replay.due_ns = now + LATE_NAP_NS

    def _take_news(self) -> None:
        os.eventfd_read(self._loader.wake_fd)
        news = self._loader.news
        while news:
            item = news.popleft()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Model):
                self._models[item.number] = item
                self._slots |= item.slots
                send_report(self._control, item.report)
            elif isinstance(item, Refused):
                send_report(self._control, item)
            elif isinstance(item, Unload):
                self._leaving.add(item.model)
                self._take_sent()
                self._let_go()

    def _take_sent(self) -> None:
        """Launches that were sent before an order: they come by another stream, and nobody may have looked yet."""
        with contextlib.suppress(BlockingIOError):
            while self._take_launch():
                pass

    def _let_go(self) -> None:
        """Free the tokenizers that were unloaded and have no replay under way."""
        for number in self._leaving - {replay.number >> SLOT_BITS for replay in self._flying}:
            self._leaving.remove(number)
            model = self._models.pop(number, None)
            if model is not None:
                for slot in model.slots:
                    del self._slots[slot]
                threading.Thread(target=model.free, daemon=True).start()


def _n_flagged(replay: _Replay) -> int:
    """Documents with a reason, which lies where the frontend reads it."""
    context = replay.slot.context
    return int(np.count_nonzero(context.reasons(replay.n_documents))) if context.any_flagged() else 0
