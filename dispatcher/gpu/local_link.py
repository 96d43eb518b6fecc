"""A GPU of this process as an engine: implements `dispatcher.gpu.link.EngineLink` without another process.

    launch ─► context of the slot ├──── nap ────┤ look ┤ nap ┤ look ┤ complete
                                  ╰ in `wait`, by the one thread that waits; it naps for what is predicted to be left

Whoever holds the route's lock launches. No message and no wake-up lies between a replay and its result, but whoever
takes the GPU down takes this process along, and what fails once stays failed: see `local_engine`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dispatcher.gpu.link import ALL_ANSWERED, Completion, EngineLost, Slot
from dispatcher.gpu.local_place import (
    AFTER_NAP,
    AT_FIRST,
    BY_POLLING,
    LONG_BYTES,
    LONG_LEARNS,
    LONG_STEPS,
    Place,
)
from dispatcher.gpu.readable import wait_readable
from gpu_core.contexts import set_up
from gpu_core.errors import DeviceFault
from gpu_core.execution import DirectLaunch, Gpu
from gpu_core.layout import REASONS
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables
from gpu_core.waiting import SILENT_NS, SLACK, TIMEOUT_NS, Lateness, Prediction, sharpen_sleep

MIN_NAP_NS = 6_000
"""A shorter rest is polled: to fall asleep and wake up takes the CPU half as long."""
EARLY_NS = 16_000
"""A nap ends so much earlier at most, because naps end late: the rest is polled, which takes the CPU."""
LONG_NAP_NS = 250_000
"""For a longer one the thread can be woken; a short one simply ends."""
LOOKS = 16
"""Looks at a completion word at a time."""
LATE_NAP_NS = 500_000
"""Time between looks at a replay that is much too late."""
CLOSED = "the engine was closed"


class Quiet(Protocol):
    """What launches as long as it is quiet."""

    is_quiet: bool


class LocalLink:
    """One GPU of this process, until it fails. `load`, `withdraw`, `unload`, `kill` and `close` from any thread."""

    def __init__(self, gpu: Gpu, options: GpuOptions, on_lost: Callable[[str], object] = lambda reason: None) -> None:
        """`on_lost` is called once, with the reason, by whichever thread notices."""
        self.n_captures = 0
        self.ready = True
        """See `EngineLink`."""
        self.may_oversleep = False
        """Naps may end late: when documents come often, more of them share the next replay, for less CPU time."""
        self.native: Quiet | None = None
        """What launches past this object while nothing happens here."""
        self._gpu, self._options, self._on_lost = gpu, options, on_lost
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._places: dict[int, Place] = {}
        self._n_made = self._n_ones = 0
        self._launched: deque[Place] = deque()
        """What `wait` has not seen yet."""
        self._flying: list[Place] = []
        self._lost = ""
        # An interrupt may come from a garbage collection in the middle of a method that holds it.
        self._guard = threading.RLock()
        # Not by their identifiers: a new thread may have that of one that ended.
        self._own = threading.local()
        self._own.is_attached = True
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_asleep = self._is_interrupted = False
        self._lateness = Lateness()

    # --- For the route -----------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a replay is under way, as far as the thread that waits can know."""
        return bool(self._flying or self._launched)

    def slots(self, model_key: str) -> Sequence[Slot]:
        """See `EngineLink`."""
        return self._slots.get(model_key, ())

    def launch(self, slot: Slot, n_bytes: int, n_documents: int, flags: int) -> None:
        """See `EngineLink`."""
        place = self._places.get(slot.number)
        if place is None or self._lost:
            raise EngineLost(self._lost or CLOSED)
        if not hasattr(self._own, "is_attached"):
            self._attach()
        place.n_bytes, place.n_documents = n_bytes, n_documents
        began_ns = time.perf_counter_ns()
        try:
            place.context.launch(n_bytes, n_documents, flags, False)
        except DeviceFault as error:
            self._lose(str(error))
            raise EngineLost(self._lost) from None
        place.expect(began_ns, is_second=False)
        self._launched.append(place)
        if self._is_asleep:
            self._wake()

    def wait(self, timeout_s: float | None) -> list[Completion]:
        """See `EngineLink`; always by the same thread, or by one after the other."""
        begin_ns = time.perf_counter_ns()
        until_ns = begin_ns + (1 << 62 if timeout_s is None else int(timeout_s * 1e9))
        seen_by, n_looks = AT_FIRST, 1
        while True:
            if self._lost:
                raise EngineLost(self._lost)
            while self._launched:
                self._flying.append(self._launched.popleft())
            done = [place for place in self._flying if place.poll(n_looks)]
            now_ns = time.perf_counter_ns()
            if done:
                if completions := self._completions(done, now_ns, seen_by):
                    return completions
                # To launch second replays takes time, too.
                now_ns = time.perf_counter_ns()
            if now_ns >= until_ns or self._is_interrupted:
                self._is_interrupted = False
                return []
            seen_by, n_looks = (AFTER_NAP, 1) if self._rest(now_ns, until_ns) else (BY_POLLING, LOOKS)

    def wait_one(self, number: int, timeout_s: float) -> int:
        """Wait for the replay of a slot if it is the only one under way: ids that it wrote.

        -1 if there is more to see to, or it is not complete in time: see `wait`. By the thread that waits.
        """
        launched, flying = self._launched, self._flying
        if launched:
            flying.append(launched.popleft())
        if len(flying) != 1 or launched or self._is_interrupted or self._lost or flying[0].slot.number != number:
            return -1
        place = flying[0]
        clock, seen_by = time.perf_counter_ns, AT_FIRST
        left_ns = place.due_ns - clock()
        if not place.is_long or place.n_second or left_ns > min(LONG_NAP_NS, timeout_s * 1e9):
            return -1
        for _ in range(LONG_STEPS):
            if left_ns > 0:
                seen_by = AFTER_NAP
                time.sleep(left_ns * 1e-9)
            if place.poll(1):
                break
            place.was_late = seen_by == AFTER_NAP
            left_ns = (place.due_ns - place.launched_ns) // LONG_STEPS
        else:
            return -1
        context = place.context
        if context.any_flagged():
            return -1
        flying.clear()
        self._n_ones += 1
        if seen_by == AFTER_NAP and not place.was_late:
            if not self._n_ones % LONG_LEARNS:
                place.learn_early(LONG_LEARNS)
        else:
            place.learn(clock(), seen_by)
        return context.n_tokens()

    def interrupt(self) -> None:
        """See `EngineLink`."""
        self._is_interrupted = True
        self._disturb()
        self._wake()

    def direct(self, slot: Slot) -> tuple[Place, DirectLaunch] | None:
        """How to launch what lies in a slot past this object, from C; None where that cannot be."""
        place = self._places.get(slot.number)
        direct = None if place is None else place.context.direct()
        if place is None or direct is None:
            return None
        return place, direct._replace(over_bytes=max(direct.over_bytes, LONG_BYTES))

    def may_be_direct(self, slot: Slot) -> bool:
        """Whether it would be launched here as it is there."""
        place = self._places.get(slot.number)
        return place is not None and not place.context.in_doubt

    def launched_directly(self, place: Place, n_bytes: int, began_ns: int) -> None:
        """Such a replay was launched at `began_ns`, and is awaited here now. Under the route's lock, as `launch`."""
        place.n_bytes, place.n_documents = n_bytes, 1
        place.context.launched_directly(n_bytes)
        place.expect(began_ns, is_second=False)
        self._launched.append(place)

    def predicted_ns(self, slot: Slot, n_bytes: int) -> float:
        """How long a replay of text as it is takes; 0 if nothing is known."""
        place = self._places.get(slot.number)
        return 0.0 if place is None else place.predictions[0].of(n_bytes)

    @property
    def is_still(self) -> bool:
        """Nothing is under way, and `wait` would find nothing to do."""
        return not (self._flying or self._launched or self._is_interrupted or self._lost)

    def prepare(self) -> None:
        """Let the calling thread launch and nap."""
        if not hasattr(self._own, "is_attached"):
            self._attach()
        self._sharpen()

    def watch(self, watch: Callable[[int], object]) -> None:
        """Call `watch` with a descriptor that becomes readable when somebody interrupts, unless it closed."""
        with self._guard:
            if self._wake_fd >= 0:
                watch(self._wake_fd)

    def _completions(self, done: list[Place], now_ns: int, seen_by: int) -> list[Completion]:
        """Of replays that are complete and need no second one."""
        completions: list[Completion] = []
        for place in done:
            context = place.context
            any_flagged = context.any_flagged()
            place.learn(now_ns, seen_by)
            if any_flagged and self._goes_on(place):
                continue
            self._flying.remove(place)
            needs_cpu = self._reasons(place) if any_flagged else ALL_ANSWERED
            took_ns = now_ns - place.began_ns
            completions.append(Completion(place.slot, context.n_tokens(), took_ns, 0, needs_cpu, place.n_second))
        return completions

    def _goes_on(self, place: Place) -> bool:
        """Whether a second replay was launched behind one that is complete: the route hears of both at once."""
        if not hasattr(self._own, "is_attached"):
            self._attach()
        began_ns = time.perf_counter_ns()
        try:
            is_launched = place.context.launch_normalized()
        except DeviceFault as error:
            self._lose(str(error))
            raise EngineLost(self._lost) from None
        if is_launched:
            place.expect(began_ns, is_second=True)
        return is_launched

    def _reasons(self, place: Place) -> dict[int, str]:
        """Documents of a replay that the device did not answer."""
        try:
            reasons = place.context.reasons(place.n_documents)
            return {int(i): REASONS[int(reasons[i])] for i in np.flatnonzero(reasons)}
        except (DeviceFault, KeyError) as error:
            self._lose(str(error))
            raise EngineLost(self._lost) from None

    def _rest(self, now_ns: int, until_ns: int) -> bool:
        """Pass some of the time until something is due; whether that was a nap."""
        may_oversleep = self.may_oversleep
        early_ns = min(int(self._lateness.ns), EARLY_NS)
        end_ns = until_ns - early_ns
        for place in self._flying:
            due_ns = place.due_ns
            if now_ns > due_ns + SILENT_NS:
                due_ns = self._doubt(place, now_ns)
            elif place.is_long:
                if now_ns >= due_ns:
                    place.was_late = True
                    due_ns = now_ns + (due_ns - place.launched_ns) // LONG_STEPS
            elif not may_oversleep:
                due_ns -= early_ns + int(SLACK * (due_ns - place.launched_ns))
            if due_ns < end_ns:
                end_ns = due_ns
        left_ns = end_ns - now_ns
        if left_ns < (2 * MIN_NAP_NS if may_oversleep else MIN_NAP_NS):
            return False
        if left_ns > LONG_NAP_NS:
            self._sleep(left_ns)
            return True
        time.sleep(left_ns * 1e-9)
        self._lateness.seen(time.perf_counter_ns() - now_ns - left_ns)
        return True

    def _doubt(self, place: Place, now_ns: int) -> int:
        """Ask the driver about a replay that is much too late; when to look at it again."""
        try:
            place.context.alive()
            if now_ns - place.launched_ns > TIMEOUT_NS:
                raise DeviceFault(f"the device has not finished a replay within {TIMEOUT_NS // 10**9} seconds")
        except DeviceFault as error:
            self._lose(str(error))
        return now_ns + LATE_NAP_NS

    def _sleep(self, left_ns: int) -> None:
        """Until somebody launches or interrupts, or for so long."""
        self._sharpen()
        self._is_asleep = True
        try:
            fd = self._wake_fd
            if self._launched or self._is_interrupted or fd < 0:
                return
            if not wait_readable(fd, min(left_ns * 1e-9, 60.0)):
                return
        finally:
            self._is_asleep = False
        with self._guard, contextlib.suppress(BlockingIOError):
            if self._wake_fd >= 0:
                os.eventfd_read(self._wake_fd)

    def _sharpen(self) -> None:
        if not hasattr(self._own, "is_sharp"):
            self._own.is_sharp = True
            sharpen_sleep()

    def _disturb(self) -> None:
        if (native := self.native) is not None:
            native.is_quiet = False

    def _wake(self) -> None:
        with self._guard:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _attach(self) -> None:
        self._gpu.attach()
        self._own.is_attached = True

    def _lose(self, reason: str) -> None:
        is_first, self._lost = not self._lost, self._lost or reason
        self._slots, self.ready = {}, False
        self._disturb()
        if is_first:
            self._on_lost(reason)

    # --- For the engine ----------------------------------------------------------------------------------------------

    @property
    def lost_reason(self) -> str:
        """Why the engine is lost; empty while it is not."""
        return self._lost

    def load(self, key: str, tables: Tables) -> tuple[int, int]:
        """Set up a tokenizer; how many slots it has, and how many were wanted.

        Takes a second the first time. Raises `DeviceUnavailable`, `DeviceFault`.
        """
        device = self._gpu.device(key, tables, self._options)
        contexts = set_up(self._options, lambda size, number: device.context(size))
        predictions = Prediction(), Prediction()
        slots: list[Slot] = []
        for size in sorted(contexts, key=lambda size: size.capacity):
            for context in contexts[size]:
                slot = Slot(
                    self._n_made,
                    key,
                    size,
                    context.text,
                    context.document_starts,
                    context.ids,
                    context.document_tokens,
                    context.decimals,
                    context.document_decimals,
                )
                self._n_made += 1
                self._places[slot.number] = Place(slot, context, predictions)
                self.n_captures += context.n_graphs
                slots.append(slot)
        self._slots = self._slots | {key: tuple(slots)}
        return len(slots), len(self._options.size_classes_bytes) * self._options.contexts_per_class

    def withdraw(self, key: str) -> None:
        """Show no slots of a tokenizer any more. Whoever has some from before must be told before `unload`."""
        self._slots = {other: slots for other, slots in self._slots.items() if other != key}

    def unload(self, key: str) -> None:
        """Let go of a tokenizer, whose slots nobody launches any more. Replays under way are still completed."""
        self.withdraw(key)
        for number, place in list(self._places.items()):
            if place.slot.model_key == key:
                del self._places[number]
                self.n_captures -= place.context.n_graphs

    def kill(self, reason: str) -> None:
        """Serve no more. The memory stays: a replay that hangs may still write there."""
        self._lose(reason)
        self.interrupt()

    def close(self) -> None:
        """The same, in peace; may be called again."""
        self.kill(CLOSED)
        with self._guard:
            fd, self._wake_fd = self._wake_fd, -1
            if fd >= 0:
                os.close(fd)
