"""Signals that end the service."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def ending(end: Callable[[bool], None]) -> Iterator[None]:
    """Call `end` on the running loop for SIGTERM, SIGINT and SIGHUP.

    It is told whether somebody insists: by SIGTERM or SIGINT after the first call. A terminal that closes sends SIGHUP,
    often more than once. Who starts a program with SIGHUP ignored, as nohup does, wants it to go on.
    """
    loop = asyncio.get_running_loop()
    called = False

    def receive(number: int) -> None:
        nonlocal called
        insists, called = called, True
        if not insists or number != signal.SIGHUP:
            end(insists)

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
