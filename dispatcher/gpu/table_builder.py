"""Builds the tables of one tokenizer in a process of its own: a second of Python, which would hold up whoever serves.

    python -m dispatcher.gpu.table_builder TABLES CACHE PARENT < tokenizer.json

TABLES is the descriptor of an empty file, CACHE the directory of cached tables or empty, PARENT the process with which
this one ends. Exit status 3: the device
cannot serve the tokenizer, and standard output says why. The file goes to engine processes as it is, also to those
that are started later.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dispatcher.gpu.child import end_with, python_command
from dispatcher.gpu.restarts import Restarts
from gpu_core.errors import TokenizerFileError, UnsupportedTokenizer
from gpu_core.spec import read_spec
from gpu_core.tables import Tables, load_tables

MODULE = "dispatcher.gpu.table_builder"
LIMIT_S = 120.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 600.0
"""Before tables whose process failed (it was killed, or there was no memory) are built again."""
_N_AT_A_TIME = 2
_ALIGNMENT = 64
_EXIT_UNSUPPORTED = 3


class TableBuilders:
    """Builds the tables of tokenizers, a few at a time."""

    def __init__(
        self,
        cache_dir: Path | None,
        on_built: Callable[[str, int, str], None],
        on_failed: Callable[[str, str, float], bool] = lambda key, reason, pause_s: True,
        delays: Callable[[], Restarts] = lambda: Restarts(FIRST_PAUSE_S, LONGEST_PAUSE_S, random.random),
    ) -> None:
        """`on_built` gets key, descriptor and "", or key, -1 and why no device serves it; on a thread of its own.

        The descriptor is that of a file of the tables, and belongs to the callee. `on_failed` gets key, what went
        wrong, and the pause in seconds after which it is tried again, if the callee says that somebody still wants it.
        `delays`: when a tokenizer is tried again.
        """
        self._cache_dir, self._on_built = cache_dir, on_built
        self._on_failed, self._delays = on_failed, delays
        self._timers: set[threading.Timer] = set()
        self._threads = ThreadPoolExecutor(_N_AT_A_TIME, "sidetok-tables")
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def submit(self, key: str, data: bytes) -> None:
        """Build those of a tokenizer.json some time soon."""
        self._threads.submit(self._build, key, data, self._delays())

    def close(self) -> None:
        """End what is under way; nobody hears of it."""
        self._closed = True
        for timer in self._timers.copy():
            timer.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.kill()
        self._threads.shutdown()

    def _build(self, key: str, data: bytes, delays: Restarts) -> None:
        fd, failure, refusal = -1, "", ""
        try:
            fd = os.memfd_create("sidetok-tables", os.MFD_CLOEXEC)
            failure, refusal = self._run(fd, data)
        except OSError as error:
            failure = f"the tables cannot be built: {error.strerror}"
        if fd >= 0 and (failure or refusal or self._closed):
            os.close(fd)
            fd = -1
        if self._closed:
            return
        if not failure:
            self._on_built(key, fd, refusal)
            return
        pause_s = delays.after(0.0)
        if self._on_failed(key, failure, pause_s):
            self._try_again(pause_s, key, data, delays)

    def _try_again(self, pause_s: float, key: str, data: bytes, delays: Restarts) -> None:
        def submit() -> None:
            self._timers.discard(timer)
            # There are no threads any more once this is closed.
            with contextlib.suppress(RuntimeError):
                self._threads.submit(self._build, key, data, delays)

        timer = threading.Timer(pause_s, submit)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
        if self._closed:
            timer.cancel()

    def _run(self, fd: int, data: bytes) -> tuple[str, str]:
        """What went wrong, and why there can be no tables; both empty if there are."""
        command = [*python_command(MODULE), str(fd), str(self._cache_dir or ""), str(os.getpid())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(fd,))
        self._processes.add(process)
        if self._closed:
            # `close` may have ended all others before this one was there.
            process.kill()
        try:
            said, _nothing = process.communicate(data, LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"building the tables took over {LIMIT_S:.0f} seconds", ""
        finally:
            self._processes.discard(process)
        if process.returncode == _EXIT_UNSUPPORTED:
            return "", said.decode(errors="replace").strip()
        return f"building the tables ended with status {process.returncode}" if process.returncode else "", ""


def write_tables(fd: int, tables: Tables) -> None:
    """Into an empty file: number of arrays, length of each and of what describes them, that, and the arrays."""
    arrays: list[memoryview] = []
    head = pickle.dumps(tables, protocol=5, buffer_callback=lambda buffer: arrays.append(buffer.raw()))
    lengths = [len(arrays), len(head), *map(len, arrays)]
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(struct.pack(f"<{len(lengths)}Q", *lengths))
        parts: list[bytes | memoryview] = [head, *arrays]
        for part in parts:
            file.seek(_aligned(file.tell()))
            file.write(part)
        file.truncate(_aligned(file.tell()))


def read_tables(fd: int) -> Tables:
    """What `write_tables` wrote, in a process that this one's parent trusts.

    The arrays lie in the file: nothing is copied, which would hold up other threads.
    """
    content = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
    n_arrays, *_head = struct.unpack_from("<2Q", content)
    lengths = struct.unpack_from(f"<{1 + n_arrays}Q", content, 8)
    at, parts = 8 * (2 + n_arrays), []
    for length in lengths:
        at = _aligned(at)
        parts.append(content[at : at + length])
        at += length
    tables: Tables = pickle.loads(parts[0], buffers=parts[1:])
    return tables


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def main(arguments: list[str]) -> int:
    """The process; its exit status."""
    if not end_with(int(arguments[2])):
        return 0
    data = sys.stdin.buffer.read()
    # Whoever serves comes first.
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        tables = load_tables(data, read_spec(data), Path(arguments[1]) if arguments[1] else None)
    except (UnsupportedTokenizer, TokenizerFileError) as error:
        print(error)
        return _EXIT_UNSUPPORTED
    write_tables(int(arguments[0]), tables)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
