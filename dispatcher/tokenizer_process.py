"""A process that holds one tokenizer and answers calls of its methods. It ends with the process that started it.

    python -m dispatcher.tokenizer_process SOCKETS PARENT

PARENT is the process that must live. SOCKETS are descriptors, separated by commas; calls come through all of them at
once, each answered by a thread of its own. Through the first one come the options and the file, and go the facts.
Objects are pickled: both ends are one program (`dispatcher.model_calls`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from dispatcher.engines import is_fault
from dispatcher.engines.memory import release_free_memory
from dispatcher.errors import EngineFault
from dispatcher.gpu.child import end_with
from dispatcher.model_calls import METHODS, Facts, Reply
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError, TokenizerFileError

NAME = b"sidetok-model"
"""What `ps` and `top` call the process."""
_PR_SET_NAME = 15


def main(arguments: Sequence[str]) -> int:
    """Serve until the other end is gone; the exit status."""
    if not end_with(int(arguments[1])):
        return 0
    # A signal to the whole group is for the parent: what is in flight there still needs this process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    connections = [Connection(int(number)) for number in arguments[0].split(",")]
    first = connections[0]
    try:
        tokenizer = _load(first)
    except (EOFError, OSError):
        return 0
    if tokenizer is None:
        return 1
    for connection in connections[1:]:
        threading.Thread(target=_serve, args=(connection, tokenizer), daemon=True).start()
    _serve(first, tokenizer)
    return 0


def _load(first: Connection) -> Tokenizer | None:
    """The tokenizer; None when it cannot be loaded, which the other end was told then."""
    options = first.recv()
    data = first.recv_bytes()
    try:
        tokenizer = load_tokenizer(data, **options)
    except BaseException as error:
        if not is_fault(error):
            raise
        known = isinstance(error, SidetokError)
        first.send(error if known else TokenizerFileError(f"{type(error).__name__}: {error}"))
        return None
    del data
    # What was made so far lives as long as the process does.
    gc.collect()
    gc.freeze()
    release_free_memory()
    first.send(
        Facts(
            tokenizer.spec,
            tokenizer.engine,
            tokenizer.engine_version,
            tokenizer.engine_reason,
            tokenizer.vocab_size,
            tokenizer.special_tokens,
        )
    )
    return tokenizer


def _serve(connection: Connection, tokenizer: Tokenizer) -> None:
    """Answer calls; the whole process ends when the other end is gone, or would wait for an answer that cannot come."""
    try:
        while True:
            name, arguments = connection.recv()
            connection.send_bytes(pickle.dumps(_reply(tokenizer, name, arguments), protocol=5))
    except (EOFError, OSError):
        os._exit(0)
    finally:
        # No memory for a call or its result, say.
        os._exit(1)


def _reply(tokenizer: Tokenizer, name: str, arguments: tuple[Any, ...]) -> Reply:
    value, failed = None, None
    try:
        if name not in METHODS:
            raise EngineFault(f"a tokenizer process does not answer {name}")
        value = getattr(tokenizer, name)(*arguments)
    except SidetokError as error:
        failed = error
    except BaseException as error:
        if not is_fault(error):
            raise
        # What a library says may quote the document.
        failed = EngineFault("An internal error occurred; the request was not at fault.")
    return Reply(value, failed, tokenizer.counters())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
