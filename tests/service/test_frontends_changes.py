"""Changes of models reach every frontend once, in one order; questions wait for nobody who is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.frontends.awaited import Awaited
from service.frontends.changes import Changes
from service.frontends.kept import FAILED, LOADING, READY, Kept
from tests.service_fakes import eventually

ADD = {"kind": "add", "name": "a", "id": "1"}
ADD_AGAIN = {"kind": "add", "name": "a", "id": "2"}
REMOVE = {"kind": "remove", "name": "a", "id": "-"}
REMOVE_FIRST = {"kind": "remove", "name": "of the start", "id": "-"}


class FakeChannel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def send(self, kind: str, content: Any = None) -> None:
        """See `Channel`."""
        self.sent.append((kind, content))

    def of(self, kind: str) -> list[Any]:
        """What was sent of one kind."""
        return [content for sent, content in self.sent if sent == kind]


def frontend(number: int, waits: bool = False, state: str = READY) -> tuple[Kept, FakeChannel]:
    """A frontend and what is sent to it."""
    process: Any = None
    channel: Any = FakeChannel()
    return Kept(number, waits, process, channel, state), channel


def test_everybody_changes_before_the_answer() -> None:
    """Who asked is answered when all made the change; one that waits for its models gets it, and is not awaited."""

    async def test() -> None:
        changes = Changes()
        (one, to_one), (two, to_two), (late, to_late) = frontend(1), frontend(2), frontend(3, True, LOADING)
        made = asyncio.ensure_future(changes.make(one, [one, two, late], 7, ADD))
        await eventually(lambda: bool(to_two.sent))
        ((number, asker, question, change),) = to_one.of("change")
        assert (asker, question, change) == (1, 7, ADD)
        assert to_late.of("change") == [[0, 1, 7, ADD]]
        changes.answered(one, number, ADD, False)
        await asyncio.sleep(0)
        assert to_one.of("changed") == []
        changes.answered(two, number, ADD, False)
        await made
        assert to_one.of("changed") == [7]
        assert changes.made == [ADD]

    asyncio.run(test())


def test_what_a_later_start_has_to_do() -> None:
    """What was added and removed again leaves nothing; what all refused neither; models of the start stay removed."""

    async def test() -> None:
        changes = Changes()
        one, channel = frontend(1)
        for change, refused in (
            (ADD, False),
            (ADD_AGAIN, True),
            (REMOVE_FIRST, False),
            (REMOVE, False),
            (REMOVE, True),
            (ADD_AGAIN, False),
        ):
            n_before = len(channel.of("change"))
            made = asyncio.ensure_future(changes.make(one, [one], 1, change))
            await eventually(lambda n=n_before: len(channel.of("change")) > n)  # type: ignore[misc]
            changes.answered(one, channel.of("change")[-1][0], change, refused)
            await made
        assert changes.made == [REMOVE_FIRST, ADD_AGAIN]

    asyncio.run(test())


def test_changes_at_the_same_time() -> None:
    """A removal undoes what was made, not what is about to be refused, in whatever order answers come."""

    async def test() -> None:
        changes = Changes()
        (one, channel), (two, _) = frontend(1), frontend(2)
        asked = (ADD, ADD_AGAIN, REMOVE)
        making = [asyncio.ensure_future(changes.make(one, [one, two], n, change)) for n, change in enumerate(asked)]
        await eventually(lambda: len(channel.of("change")) == len(asked))
        # A frontend that starts now makes and refuses the same.
        assert changes.made == [ADD, ADD_AGAIN, REMOVE]
        for kept in (two, one):
            for number, _, _, change in channel.of("change"):
                changes.answered(kept, number, change, change == ADD_AGAIN)
        await asyncio.gather(*making)
        assert changes.made == []

    asyncio.run(test())


@pytest.mark.parametrize(
    ("states", "worst"),
    [
        ([(READY, None), (READY, None)], (READY, None)),
        ([(READY, None), None], (LOADING, None)),
        ([(FAILED, "why"), None], (LOADING, None)),
        ([(READY, None), (FAILED, "why")], (FAILED, "why")),
        ([], (LOADING, None)),
    ],
)
def test_a_model_is_as_far_as_the_last(states: list[Any], worst: tuple[str, str | None]) -> None:
    """It is ready when it is in every frontend that accepts connections; an error of one is told."""
    changes = Changes()
    changes.made.append(ADD)
    everybody = [frontend(9, True, LOADING)[0]]
    for number, state in enumerate(states):
        kept = frontend(number)[0]
        kept.models = {} if state is None else {"1": state}
        everybody.append(kept)
    assert changes.states(everybody) == {"1": worst}


def test_nobody_waits_for_the_dead() -> None:
    """A question ends when everybody answered or is gone, or after its time; late answers do no harm."""

    async def test() -> None:
        awaited = Awaited()
        (one, to_one), (two, _), (three, _) = frontend(1), frontend(2), frontend(3)
        asking = asyncio.ensure_future(awaited.ask("q", [one, two, three], 60, "x"))
        await eventually(lambda: bool(to_one.sent))
        number, content = to_one.of("q")[0]
        assert content == "x"
        awaited.answered(number, one)
        awaited.answered(number, one)
        awaited.answered(number + 1, two)
        awaited.lose(three)
        awaited.answered(number, two)
        assert await asking == 3
        awaited.answered(number, two)
        awaited.lose(two)
        assert await awaited.ask("q", [one], 0.001) == 0
        assert await awaited.ask("q", [], 60) == 0

    asyncio.run(test())
