"""One context of a GPU of this process: the replay that is under way there, and what it says about the next one."""

from __future__ import annotations

import time

from dispatcher.gpu.link import Slot
from gpu_core.execution import ExecutionContext
from gpu_core.waiting import Poll, Prediction

LONG_BYTES = 1 << 18
"""A replay of more text is never polled: texts of one size differ by more than a nap costs."""
LONG_STEPS = 8
"""One that is not complete when a nap for it ends is given so much of its predicted time more."""
LONG_EARLY = 1 / 128
"""By so much of it the next nap is shorter after one that was long enough: a few are too short, and say how long it
takes."""
LONG_ROW, LONG_DOUBLES = 16, 4
"""Twice as much after so many in a row, up to so many times: one that was interrupted says little for long."""
LONG_LATE = 2.0
"""One that is late counts as so many times as long as predicted at most."""
LONG_LEARNS = 4
"""Of those that nothing was beside, one in so many naps that were long enough says so, for as many."""
AT_FIRST, BY_POLLING, AFTER_NAP = range(3)
"""Which look saw that a replay is complete."""


class Place:
    """A slot, its context, and the replay that is under way there."""

    __slots__ = (
        "began_ns",
        "context",
        "due_ns",
        "is_long",
        "launched_ns",
        "n_bytes",
        "n_documents",
        "n_in_row",
        "n_second",
        "poll",
        "prediction",
        "predictions",
        "slot",
        "was_late",
    )

    def __init__(self, slot: Slot, context: ExecutionContext, predictions: tuple[Prediction, Prediction]) -> None:
        """`predictions`: of replays over text as it is, and over text that the device brings into normal form."""
        self.slot, self.context, self.predictions = slot, context, predictions
        self.prediction = predictions[0]
        self.poll: Poll = context.poll
        self.n_bytes = self.n_documents = self.n_second = self.n_in_row = 0
        self.began_ns = self.launched_ns = 0
        """When the replay was launched, and when what is under way now: that, or the second one behind it."""
        self.due_ns = 0
        """When a look is worth while; much later the driver is asked."""
        self.is_long = self.was_late = False
        """Naps for it follow each other, without looks in between; the first one was too short."""

    def expect(self, began_ns: int, is_second: bool) -> None:
        """A replay, whose launch took from `began_ns` until now, will take as long as predicted."""
        if is_second:
            self.n_second += 1
        else:
            self.began_ns, self.n_second = began_ns, 0
        in_normal_form = self.context.in_normal_form
        # Memory that the first one in normal form takes is no part of what replays take.
        self.launched_ns = time.perf_counter_ns() if in_normal_form else began_ns
        self.prediction = self.predictions[in_normal_form]
        predicted_ns = int(self.prediction.of(self.n_bytes))
        self.due_ns = self.launched_ns + predicted_ns
        self.is_long, self.was_late = self.n_bytes > LONG_BYTES and predicted_ns > 0, False

    def learn(self, now_ns: int, seen_by: int) -> None:
        """Predict the next one by this one, which is complete."""
        took_ns = now_ns - self.launched_ns
        if seen_by == AT_FIRST and now_ns >= self.due_ns:
            # Whoever comes late to the first look learns nothing about when it ended.
            return
        is_bound = seen_by == AFTER_NAP
        if is_bound and self.is_long:
            is_bound = False
            if not self.was_late:
                self.learn_early(1)
                return
            took_ns = min(took_ns, int(LONG_LATE * (self.due_ns - self.launched_ns)))
        self.n_in_row = 0
        self.prediction.seen(self.n_bytes, took_ns, is_bound)

    def learn_early(self, n_times: int) -> None:
        """A nap was long enough, and those before it: try a shorter one."""
        self.n_in_row += n_times
        part = n_times * LONG_EARLY * (1 << min(self.n_in_row // LONG_ROW, LONG_DOUBLES))
        took_ns = int((self.due_ns - self.launched_ns) * (1 - part))
        self.prediction.seen(self.n_bytes, took_ns, False)
