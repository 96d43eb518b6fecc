"""The line of a run: what is done, how fast, and how long the rest takes."""

from __future__ import annotations

import io

import numpy as np

from service.files.engine import Failure, Packed
from service.files.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """True."""
        return True


class Clock:
    """Time as the test says."""

    now_s = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


def packed(source: int, n_read: int, failures: int = 0) -> Packed:
    """A group of two documents with 500,000 ids."""
    ids, lengths = np.zeros(500_000, "<u4"), np.array([1, 499_999], np.uint64)
    return Packed((source, 1), n_read, ids, lengths, 1000, 0, [Failure(source, 1, "bad")] * failures)


def test_the_line_on_a_terminal() -> None:
    """Share, size, documents, ids, rate and time left, at most five times a second, one line over the other."""
    clock, stream = Clock(), Terminal()
    progress = Progress(stream, 4_000_000, clock)
    progress.begin_unit([1_000_000, 3_000_000], 7, 0)
    clock.now_s += 0.1
    progress.count(packed(7, 500_000))
    assert stream.getvalue() == ""
    clock.now_s += 0.9
    progress.count(packed(8, 1_000_000, failures=2))
    line = " 50% ████████████░░░░░░░░░░░░  2.0 of 4.0 MB  4 documents  1,000,000 ids  1.00 M/s  0:01 left  2 left out"
    assert stream.getvalue() == f"{line}\x1b[K\r"


def test_time_left_counts_what_this_run_did() -> None:
    """What an earlier run left behind does not make this one look fast; hours are shown as such."""
    clock = Clock()
    progress = Progress(None, 4_000_000, clock)
    progress.skip(2_000_000)
    progress.begin_unit([2_000_000], 1, 2_000_000)
    clock.now_s += 3600
    progress.count(packed(1, 1_000_000))
    assert "75%" in progress.line(clock.now_s)
    assert "1:00:00 left" in progress.line(clock.now_s)


def test_lines_elsewhere() -> None:
    """Not on a terminal there is a line every ten seconds."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(stream, 1_000_000, clock)
    progress.begin_unit([1_000_000], 0, 0)
    for _ in range(25):
        clock.now_s += 1
        progress.count(packed(0, 100_000))
    progress.clear()
    assert stream.getvalue().count("\n") == 2
    assert "\x1b" not in stream.getvalue()
