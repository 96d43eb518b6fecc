"""Of whom an answer is awaited: a question goes to many frontends, and some may be slow, or end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable
from typing import Any

from service.frontends.kept import Kept


class Awaited:
    """Questions by number, and who has not answered each."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._missing: dict[int, set[Kept]] = {}
        self._complete: dict[int, asyncio.Event] = {}

    async def ask(self, kind: str, everybody: Iterable[Kept], seconds: float, *content: Any) -> int:
        """Send a message of its number and `content`; how many answered, or ended, within so many seconds."""
        number = next(self._numbers)
        asked = set(everybody)
        missing = self._missing[number] = set(asked)
        complete = self._complete[number] = asyncio.Event()
        for kept in asked:
            kept.channel.send(kind, [number, *content])
        with contextlib.suppress(TimeoutError):
            if asked:
                await asyncio.wait_for(complete.wait(), seconds)
        del self._missing[number], self._complete[number]
        return len(asked) - len(missing)

    def answered(self, number: int, kept: Kept) -> None:
        """A frontend answered a question; nothing happens if nobody waits for it any more."""
        if kept in self._missing.get(number, ()):
            self._strike(number, kept)

    def lose(self, kept: Kept) -> None:
        """A frontend ended: nobody waits for it."""
        for number in [number for number, missing in self._missing.items() if kept in missing]:
            self._strike(number, kept)

    def _strike(self, number: int, kept: Kept) -> None:
        self._missing[number].discard(kept)
        if not self._missing[number]:
            self._complete[number].set()
