"""Signs of life from an engine that starts or loads a tokenizer, so that one that hangs is told from one that works.

step done ─► PROGRESS          a step that may take long ─► PROGRESS every `BEAT_S`, for `LONGEST_STEP_S` at most
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from dispatcher.gpu.messages import Progress, send_report

BEAT_S = 0.5
LONGEST_STEP_S = 100.0
"""A step that takes longer hangs, and nothing more is said for it."""


@contextlib.contextmanager
def beating(channel: socket.socket, limit_s: float = LONGEST_STEP_S) -> Iterator[None]:
    """Say that this process works while the context lasts, and is not stopped."""
    over = threading.Event()

    def beat() -> None:
        # Without a frontend the process ends anyway.
        with contextlib.suppress(OSError):
            for _ in range(int(limit_s / BEAT_S)):
                if over.wait(BEAT_S):
                    return
                send_report(channel, Progress())

    thread = threading.Thread(target=beat, name="sidetok-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
