"""Waiting for a replay: sleep for most of the predicted time, then poll. Clock, sleep and poll are arguments.

    launch ├──── sleep ────────────┤ poll poll poll ┤ done
           ╰ predicted time - how late sleeps end - slack ╯

Spinning costs the CPU what it saves in latency, and a blocking call costs latency; this has most of both. When the
device is done before the first poll, how early is unknown: the prediction shrinks until polls see the end again.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from gpu_core.errors import DeviceFault

MIN_SLEEP_NS = 25_000
"""A shorter sleep costs the CPU as much as polling does, and its caller the time to wake up."""
SLACK = 1 / 32
"""Part of the predicted time that is polled rather than slept, because replays vary."""
FIRST_WAKE_NS = 8_000
"""How late a sleep is assumed to end before the first one was seen."""
SILENT_NS = 2_000_000
"""After so much more time than predicted the device is asked whether it still works, and again each time."""
TIMEOUT_NS = 10_000_000_000
"""A replay that takes longer is a fault: no batch of the largest class takes a hundredth of it."""
_POLLS_PER_LOOK = 64
_LATENESS_STEP = 1 / 32
_PR_SET_TIMERSLACK = 29


Poll = Callable[[int], bool]
"""Looks up to so many times; whether the replay is complete."""


class Waited(NamedTuple):
    """What one wait was made of, in nanoseconds."""

    total_ns: int
    slept_ns: int
    polled_ns: int


class Prediction:
    """Time from launch to completion by size of the text, learned from what was seen.

    Sizes share a bucket with those up to a quarter of an octave away; an empty bucket borrows from the nearest one.
    """

    def __init__(self) -> None:
        self._by_bucket: dict[int, float] = {}

    def of(self, n_bytes: int) -> float:
        """Predicted nanoseconds; 0 when nothing is known."""
        bucket = _bucket(n_bytes)
        known = self._by_bucket.get(bucket)
        if known is not None:
            return known
        # A copy first: another thread may learn meanwhile.
        smaller = [other for other in tuple(self._by_bucket) if other < bucket]
        return self._by_bucket[max(smaller)] if smaller else 0.0

    def seen(self, n_bytes: int, took_ns: int, is_bound: bool) -> None:
        """Learn from one replay. `is_bound`: it took at most `took_ns`, because nobody looked earlier."""
        bucket = _bucket(n_bytes)
        known = self._by_bucket.get(bucket)
        if known is None:
            self._by_bucket[bucket] = took_ns
        elif is_bound:
            self._by_bucket[bucket] = min(known, took_ns) * (1 - SLACK)
        else:
            # Down fast, up slowly: oversleeping delays an answer, polling costs one CPU a little.
            weight = 0.125 if took_ns > known else 0.5
            self._by_bucket[bucket] = known + weight * (took_ns - known)


@lru_cache(maxsize=1024)
def _bucket(n_bytes: int) -> int:
    octave = n_bytes.bit_length()
    return octave << 2 | (n_bytes << 2 >> max(octave - 1, 0)) & 3


class Lateness:
    """How late sleeps end, learned so that three of four end no later. In steps: a long interruption counts as one."""

    def __init__(self) -> None:
        self.ns = float(FIRST_WAKE_NS)

    def seen(self, late_ns: float) -> None:
        """Learn from one sleep."""
        self.ns *= 1 + 3 * _LATENESS_STEP if late_ns > self.ns else 1 - _LATENESS_STEP

    def forget(self) -> None:
        """Doubt what was learned, once for each sleep that was left out because of it: a bad spell passes."""
        self.ns = max(self.ns * (1 - _LATENESS_STEP / 8), FIRST_WAKE_NS)


class AdaptiveWait:
    """Sleeps, then polls; learns both how long replays take and how late sleeps end."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.prediction = Prediction()
        self._clock, self._sleep = clock, sleep
        self.lateness = Lateness()
        self._unlearned: tuple[int, int, bool] | None = None

    def wait(self, poll: Poll, alive: Callable[[], None], n_bytes: int, launched_ns: int) -> Waited:
        """Return once `poll` says so; `alive` raises if the device has failed. `launched_ns` is on the same clock."""
        # The lesson of the last wait is learned now, while the device works.
        prediction, clock = self.prediction, self._clock
        if self._unlearned is not None:
            prediction.seen(*self._unlearned)
        predicted = prediction.of(n_bytes)
        slept = 0
        first = clock()
        lateness = self.lateness
        left = predicted * (1 - SLACK) - (first - launched_ns)
        want = left - lateness.ns
        if want >= MIN_SLEEP_NS:
            before = first
            self._sleep(want / 1e9)
            first = clock()
            slept = first - before
            lateness.seen(slept - want)
        elif left >= MIN_SLEEP_NS + FIRST_WAKE_NS:
            lateness.forget()
        if poll(1):
            self._unlearned = (n_bytes, first - launched_ns, slept > 0)
            return Waited(first - launched_ns, slept, 0)
        end = poll_until(poll, alive, clock, predicted)
        self._unlearned = (n_bytes, end - launched_ns, False)
        return Waited(end - launched_ns, slept, end - first)


class SpinWait:
    """Polls from the first moment: the lowest latency, and one CPU."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock

    def wait(self, poll: Poll, alive: Callable[[], None], n_bytes: int, launched_ns: int) -> Waited:
        """See `AdaptiveWait.wait`."""
        first = self._clock()
        end = poll_until(poll, alive, self._clock, 0.0)
        return Waited(end - launched_ns, 0, end - first)


def is_reached(word: memoryview, epoch: int, n_times: int) -> bool:
    """Look up to `n_times` whether a completion word has come to an epoch."""
    while word[0] != epoch:
        n_times -= 1
        if n_times <= 0:
            return False
    return True


def poll_until(poll: Poll, alive: Callable[[], None], clock: Callable[[], int], predicted_ns: float) -> int:
    """Poll until done; the time then. Raises `DeviceFault` when the device fails or says nothing for too long."""
    if poll(_POLLS_PER_LOOK):
        return clock()
    begin = clock()
    patience = predicted_ns + SILENT_NS
    while True:
        if poll(_POLLS_PER_LOOK):
            return clock()
        waited = clock() - begin
        if waited > patience:
            alive()
            patience += SILENT_NS
        if waited > TIMEOUT_NS:
            raise DeviceFault(f"the device has not finished a replay within {TIMEOUT_NS // 10**9} seconds")


def sharpen_sleep() -> bool:
    """Let sleeps of the calling thread end within microseconds instead of 50: its timer slack becomes 1 ns."""
    try:
        return int(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False
