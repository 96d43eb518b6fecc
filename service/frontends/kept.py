"""One frontend as its keeper sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass, field

from service.frontends.messages import Channel

LOADING, READY, FAILED = "loading", "ready", "failed"
SILENT_LOOKS = 30
"""Looks in a row without a beat after which a frontend hangs."""
LINGER_S = 5.0
"""How long a process may live on after it closed its channel."""


@dataclass(eq=False)
class Kept:
    """A process that serves, or will."""

    number: int
    waits: bool
    """It accepts connections only when its models are loaded."""
    process: asyncio.subprocess.Process
    channel: Channel
    state: str = LOADING
    models: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """State and error of models that it loaded at run time, by id."""
    digests: dict[str, str] = field(default_factory=dict)
    """Of the files of its models, by id; empty for one that failed."""
    ready_s: float = 0.0
    """When its models were loaded, on the monotonic clock; 0 = not yet."""

    n_silent: int = 0
    """Looks in a row for which its event loop did not turn."""
    _beats: int = 0

    def hangs(self, beats: int) -> bool:
        """Look once: whether it moved before, and has not for long. `beats`: its number on the board.

        Looks are counted, not seconds: where the whole service was stopped, nobody hangs.
        """
        self.n_silent = self.n_silent + 1 if beats and beats == self._beats else 0
        self._beats = beats
        return self.n_silent == SILENT_LOOKS

    def differs(self, other: Kept) -> bool:
        """Whether it lacks a model that another one serves, or read other files for it."""
        return any(known and self.digests.get(model, known) != known for model, known in other.digests.items())

    @property
    def accepts(self) -> bool:
        """Whether connections may come to it."""
        return not self.waits or self.state in (READY, FAILED)

    def served_s(self, now_s: float) -> float:
        """Seconds for which it could serve."""
        return now_s - self.ready_s if self.ready_s else 0.0

    def kill(self) -> None:
        """End it at once."""
        # Not by `Process.kill`, which takes notice of an end that asyncio waits for.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Wait for the end, and make sure of it; the exit status, negative for a signal."""
        try:
            return await asyncio.wait_for(self.process.wait(), LINGER_S)
        except TimeoutError:
            self.kill()
            return await self.process.wait()
