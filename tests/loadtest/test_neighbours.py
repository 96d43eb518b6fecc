"""Busy processes: they work, and go."""

from __future__ import annotations

import os
import signal

from loadtest.neighbours import busy
from tests.fakes import LIMIT_S


def test_they_work_until_the_end_or_an_interrupt() -> None:
    """Each works from the start, an interrupt ends one without a word, and none is left afterwards."""
    with busy(2, os.sched_getaffinity(0)) as neighbours:
        assert neighbours.n_done >= 2
        first, second = neighbours.processes
        assert first.pid
        os.kill(first.pid, signal.SIGINT)
        first.join(LIMIT_S)
        assert first.exitcode == -signal.SIGINT
        assert second.is_alive()
    assert not second.is_alive()
