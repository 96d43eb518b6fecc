"""Calls in a copy of this process, so that whatever they see and remember is gone with it.

Loading a tokenizer takes seconds, a copy of a process that has loaded one takes milliseconds. A process is copied
before any library has started threads in it: they would be missing in the copy.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from typing import Protocol, TypeVar

from loadtest.bench.contender import Unavailable

T = TypeVar("T")


class Place(Protocol):
    """Where a call is made: in a copy of this process, or in itself."""

    def __call__(self, call: Callable[[], T]) -> T:
        """What the call returns or raises."""


def in_copy(call: Callable[[], T]) -> T:
    """The call in a copy of this process. Raises what it raises, and `Unavailable` when the process ends without."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(call, theirs))
    process.start()
    theirs.close()
    try:
        value, error = ours.recv()
    except EOFError:
        process.join()
        raise Unavailable(f"its process ended with status {process.exitcode}") from None
    finally:
        ours.close()
    process.join()
    if error is not None:
        raise error
    answer: T = value
    return answer


def in_place(call: Callable[[], T]) -> T:
    """The call in this process: for contenders that remember nothing, and those that hold a GPU."""
    return call()


def _answer(call: Callable[[], object], pipe: Pipe) -> None:
    # Ctrl-C is for the whole group of processes; this one has nothing to say about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        pipe.send((call(), None))
    except Exception as error:
        pipe.send((None, error))
