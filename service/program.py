"""How a command ends when nobody reads what it prints, or when it is interrupted: quietly, as other programs do."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import sys
from collections.abc import Callable
from typing import ParamSpec, TextIO

P = ParamSpec("P")

INTERRUPTED, NOT_READ = 130, 141
"""What a shell says of programs that SIGINT and SIGPIPE ended."""


def program(main: Callable[P, int]) -> Callable[P, int]:
    """`main` as the whole of a program: `COMMAND | head` and Ctrl-C print no traceback.

    Status 141: the reader of its output left before the end; 130: it was interrupted.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            status = main(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
            return status
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            # Of a socket it would be a fault.
            if all(map(_is_read, _streams())):
                raise
            return NOT_READ
        finally:
            # What is left in a buffer is written at the end of the interpreter, which would complain.
            for stream in _streams():
                try:
                    stream.flush()
                except OSError:
                    discard(stream)

    return run


def discard(stream: TextIO) -> None:
    """Let what is written to a stream from here on, and what its buffer still holds, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def _streams() -> list[TextIO]:
    """Standard output and error; a program that is started without one of them has not got it."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _is_read(stream: TextIO) -> bool:
    """Whether the other end of a pipe or socket is open."""
    poll = select.poll()
    with contextlib.suppress(OSError):
        poll.register(stream.fileno(), 0)
    return not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
