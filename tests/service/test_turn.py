"""Turns: one thread at a time, never for ever."""

from __future__ import annotations

import pytest

from service.turn import Turn


def test_one_has_the_turn() -> None:
    """While one has it, others go on without when they waited long enough; afterwards it is free again."""
    turn = Turn(max_wait_s=0)
    with turn.taken() as first, turn.taken() as second:
        assert (first, second) == (True, False)
    with turn.taken() as again:
        assert again


def test_who_goes_on_without_leaves_the_turn_alone() -> None:
    """The end of a block that never had the turn does not end that of the one who has it."""
    turn = Turn(max_wait_s=0)
    with turn.taken():
        with turn.taken():
            pass
        with turn.taken() as third:
            assert not third


def test_an_error_gives_the_turn_back() -> None:
    """It is free after a block that failed."""
    turn = Turn(max_wait_s=0)
    with pytest.raises(ValueError, match="why"), turn.taken():
        raise ValueError("why")
    with turn.taken() as again:
        assert again
