"""One frontend as its keeper sees it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from service.frontends.messages import Channel

LOADING, READY, FAILED = "loading", "ready", "failed"
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
    ready_s: float = 0.0
    """When its models were loaded, on the monotonic clock; 0 = not yet."""

    @property
    def accepts(self) -> bool:
        """Whether connections may come to it."""
        return not self.waits or self.state in (READY, FAILED)

    def served_s(self, now_s: float) -> float:
        """Seconds for which it could serve."""
        return now_s - self.ready_s if self.ready_s else 0.0

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def ended(self) -> int:
        """Wait for the end, and make sure of it; the exit status, negative for a signal."""
        try:
            return await asyncio.wait_for(self.process.wait(), LINGER_S)
        except TimeoutError:
            self.kill()
            return await self.process.wait()
