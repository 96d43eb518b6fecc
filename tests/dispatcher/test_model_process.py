"""The end of a model's process, which others may see first."""

from __future__ import annotations

import os
import signal

import pytest

from dispatcher import model_process
from dispatcher.meter import ThreadClocks


def test_a_process_that_somebody_else_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number, which is another process's soon, gets no signal."""
    process, signalled = model_process._Process(1, ThreadClocks()), list[int]()
    os.kill(process.running.pid, signal.SIGKILL)
    os.waitpid(process.running.pid, 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
        process.kill()
    process.reap()
    assert signalled == []
