"""Models that are added and removed at run time: every frontend makes the same changes in the same order.

A frontend that is asked for a change passes it to the keeper, which sends it to all and keeps it for those that start
later. Whoever asked is answered when all that accept connections have made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.frontends.awaited import Awaited
from service.frontends.kept import FAILED, LOADING, READY, Kept

CHANGE_S = 5.0
"""How long a change waits for a frontend; one that is later makes it, too, when it moves again."""

Content = dict[str, Any]


class Changes:
    """What was changed since the start, and how far frontends are. Used on the event loop of the keeper."""

    def __init__(self) -> None:
        self.made: list[Content] = []
        """Changes that a frontend has to make, or to refuse as all do, that starts now, in their order."""
        self._awaited = Awaited()

    async def make(self, asker: Kept, everybody: Iterable[Kept], question: int, change: Content) -> None:
        """Have all frontends make a change, then tell who asked for it."""
        everybody = list(everybody)
        self.made.append(change)
        waiting = [kept for kept in everybody if not kept.accepts]
        for kept in waiting:
            kept.channel.send("change", [0, asker.number, question, change])
        accepting = [kept for kept in everybody if kept.accepts]
        await self._awaited.ask("change", accepting, CHANGE_S, asker.number, question, change)
        asker.channel.send("changed", question)

    def answered(self, kept: Kept, number: int, change: Content, is_refused: bool) -> None:
        """A frontend made a change, or refused it as all of them do."""
        if change in self.made:
            if is_refused:
                self.made.remove(change)
            elif change["kind"] == "remove":
                self._forget(change)
        self._awaited.answered(number, kept)

    def lose(self, kept: Kept) -> None:
        """A frontend ended."""
        self._awaited.lose(kept)

    def states(self, everybody: Iterable[Kept]) -> dict[str, tuple[str, str | None]]:
        """State and error of each added model, by id: the worst of all frontends that accept connections."""
        accepting = [kept for kept in everybody if kept.accepts]
        added = [change["id"] for change in self.made if change["kind"] == "add"]
        return {model: _worst([kept.models.get(model, (LOADING, None)) for kept in accepting]) for model in added}

    def _forget(self, removal: Content) -> None:
        """What a removal that was made undid; what was refused before it is gone by then."""
        before = self.made[: self.made.index(removal)]
        added = [made for made in before if made["kind"] == "add" and made["name"] == removal["name"]]
        if added:
            self.made.remove(added[-1])
            self.made.remove(removal)


def _worst(states: list[tuple[str, str | None]]) -> tuple[str, str | None]:
    for wanted in (LOADING, FAILED):
        for state, error in states:
            if state == wanted:
                return state, error
    return READY if states else LOADING, None
