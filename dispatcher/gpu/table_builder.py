"""Builds the tables of one tokenizer in a process of its own: a second of Python, which would hold up whoever serves.

    python -m dispatcher.gpu.table_builder TABLES CACHE < tokenizer.json

TABLES is the descriptor of an empty file, CACHE the directory of cached tables or empty. Exit status 3: the device
cannot serve the tokenizer, and standard output says why. The file goes to engine processes as it is, also to those
that are started later.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import subprocess
import sys
from pathlib import Path

from dispatcher.gpu.child import python_command
from gpu_core.errors import InternalError, TokenizerFileError, UnsupportedTokenizer
from gpu_core.spec import read_spec
from gpu_core.tables import Tables, load_tables

MODULE = "dispatcher.gpu.table_builder"
LIMIT_S = 120.0
_EXIT_UNSUPPORTED = 3


def build_in_process(data: bytes, cache_dir: Path | None) -> int:
    """The descriptor of a file of the tables of a tokenizer.json, which belongs to the caller.

    Raises `UnsupportedTokenizer` with the reason, `InternalError` when the process fails, and `OSError`.
    """
    fd = os.memfd_create("sidetok-tables", os.MFD_CLOEXEC)
    try:
        command = [*python_command(MODULE), str(fd), str(cache_dir or "")]
        done = subprocess.run(command, input=data, stdout=subprocess.PIPE, pass_fds=(fd,), timeout=LIMIT_S, check=False)
        if done.returncode == _EXIT_UNSUPPORTED:
            raise UnsupportedTokenizer(done.stdout.decode(errors="replace").strip())
        if done.returncode:
            raise InternalError(f"building the tables ended with status {done.returncode}")
        return fd
    except subprocess.TimeoutExpired:
        os.close(fd)
        raise InternalError(f"building the tables took over {LIMIT_S:.0f} seconds") from None
    except BaseException:
        os.close(fd)
        raise


def write_tables(fd: int, tables: Tables) -> None:
    """Into an empty file."""
    with os.fdopen(os.dup(fd), "wb") as file:
        pickle.dump(tables, file, protocol=5)


def read_tables(fd: int) -> Tables:
    """What `write_tables` wrote, in a process that this one's parent trusts; several may read at a time."""
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as content:
        tables: Tables = pickle.loads(content)
    return tables


def main(arguments: list[str]) -> int:
    """The process; its exit status."""
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
