"""A worker's bell."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from dispatcher.bell import Bell
from tests.fakes import LIMIT_S


def rung(bell: Bell) -> threading.Event:
    """Set when a thread that waits at the bell was woken."""
    woken = threading.Event()

    def wait() -> None:
        bell.wait()
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    return woken


def test_who_waits_is_woken_once() -> None:
    """A ring wakes the one that waits, or the next wait; it is gone afterwards."""
    bell = Bell()
    waiting = rung(bell)
    bell.ring()
    assert waiting.wait(LIMIT_S)
    bell.ring()
    bell.wait()
    again = rung(bell)
    assert not again.is_set()
    bell.ring()
    assert again.wait(LIMIT_S)
    bell.close()


def test_a_signal_does_not_wake() -> None:
    """A signal that reaches the thread neither wakes it nor breaks the wait."""
    bell, before = Bell(), signal.signal(signal.SIGUSR1, lambda *_: None)
    in_wait, woken = threading.Event(), threading.Event()
    thread_ids: list[int] = []

    def wait() -> None:
        thread_ids.append(threading.get_ident())
        in_wait.set()
        bell.wait()
        woken.set()

    threading.Thread(target=wait, daemon=True).start()
    assert in_wait.wait(LIMIT_S)
    for _ in range(20):
        signal.pthread_kill(thread_ids[0], signal.SIGUSR1)
    assert not woken.is_set()
    bell.ring()
    assert woken.wait(LIMIT_S)
    signal.signal(signal.SIGUSR1, before)
    bell.close()


CLOSED = """
import os
from dispatcher.bell import Bell
before = set(os.listdir("/proc/self/fd"))
bell = Bell()
opened = set(os.listdir("/proc/self/fd")) - before
bell.close()
print(len(opened), set(os.listdir("/proc/self/fd")) == before)
"""


def test_a_closed_bell_leaves_no_descriptor() -> None:
    """What the bell opened is closed."""
    # In a process of its own, where nobody else opens or closes anything.
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "True"]
