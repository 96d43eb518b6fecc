"""Signals that end the service: which do, how often, and when they are left alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from service.signals import ending


@pytest.fixture(autouse=True)
def _kept_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    # The tests themselves may run under nohup.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def heard(*numbers: int) -> list[bool]:
    """What `end` was called with, when these signals come one after another."""
    calls: list[bool] = []

    async def main() -> None:
        with ending(calls.append):
            for number in numbers:
                os.kill(os.getpid(), number)
                await asyncio.sleep(0)
                # The loop hears of signals by a socket, which it looks at in its next turn.
                await asyncio.sleep(0)

    asyncio.run(main())
    return calls


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_of_them_ends_it(number: int) -> None:
    """Who stops it, interrupts it or closes its terminal ends it, and does not insist at first."""
    assert heard(number) == [False]


def test_who_insists() -> None:
    """A second SIGTERM or SIGINT says so, whatever came first."""
    assert heard(signal.SIGTERM, signal.SIGINT) == [False, True]
    assert heard(signal.SIGHUP, signal.SIGTERM) == [False, True]


def test_a_terminal_does_not_insist() -> None:
    """One that closes sends SIGHUP more than once: nothing is cut short."""
    assert heard(signal.SIGHUP, signal.SIGHUP) == [False]
    assert heard(signal.SIGTERM, signal.SIGHUP) == [False]


def test_nohup() -> None:
    """Where SIGHUP is ignored from the start, it stays so."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert heard(signal.SIGHUP) == []
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
