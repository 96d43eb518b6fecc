"""A line that says how far a run is. The clock is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from service.files.engine import Packed

WIDTH = 24
TERMINAL_S, LINES_S = 0.2, 10.0
"""Seconds between two lines: on a terminal, where one replaces the other, and elsewhere."""


class Progress:
    """Counts what is done, and shows it."""

    def __init__(self, stream: TextIO | None, n_bytes: int, clock: Callable[[], float]) -> None:
        """Without a stream nothing is shown. `n_bytes` is the size of the input."""
        self._stream = stream
        self._on_terminal = stream is not None and stream.isatty()
        self._period_s = TERMINAL_S if self._on_terminal else LINES_S
        self._clock = clock
        self._start_s = self._shown_s = clock()
        self._n_bytes = max(1, n_bytes)
        self._n_before = self._n_read = self._n_unit = self._first = 0
        self._sizes: list[int] = []
        self.n_documents = self.n_tokens = self.n_gpu = self.n_left_out = 0

    def begin_unit(self, sizes: list[int], first: int, n_done_bytes: int) -> None:
        """A unit of files of these sizes begins, the first of which has this index; so much came before it."""
        self._sizes, self._first, self._n_unit = sizes, first, n_done_bytes

    def skip(self, n_bytes: int) -> None:
        """So much of the input was done by an earlier run."""
        self._n_before += n_bytes

    def count(self, group: Packed) -> None:
        """Some ids were written."""
        self.n_documents += group.lengths.size
        self.n_tokens += group.ids.size
        self.n_gpu += group.n_gpu
        self.n_left_out += len(group.failures)
        index = group.done[0] - self._first
        self._n_read = self._n_unit + sum(self._sizes[:index]) + min(group.n_read, self._sizes[index])
        now_s = self._clock()
        if self._stream is not None and now_s - self._shown_s >= self._period_s:
            self._shown_s = now_s
            end = "\x1b[K\r" if self._on_terminal else "\n"
            self._stream.write(self.line(now_s) + end)
            self._stream.flush()

    def line(self, now_s: float) -> str:
        """What is shown."""
        done = min(1.0, self._n_read / self._n_bytes)
        took_s = max(1e-9, now_s - self._start_s)
        bar = "█" * int(done * WIDTH)
        parts = [
            f"{done:4.0%} {bar:░<{WIDTH}}",
            f"{self._n_read / 1e6:,.1f} of {self._n_bytes / 1e6:,.1f} MB",
            f"{self.n_documents:,} documents",
            f"{self.n_tokens:,} ids",
            f"{self.n_tokens / took_s / 1e6:.2f} M/s",
        ]
        new = self._n_read - self._n_before
        if new > 0 and done < 1:
            parts.append(f"{_clock_text((self._n_bytes - self._n_read) * took_s / new)} left")
        if self.n_left_out:
            parts.append(f"{self.n_left_out} left out")
        return "  ".join(parts)

    def clear(self) -> None:
        """Make room on the terminal for another line."""
        if self._stream is not None and self._on_terminal:
            self._stream.write("\x1b[K")
            self._stream.flush()


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
