"""Commands in a pipeline, and commands that are interrupted."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from service.program import INTERRUPTED, NOT_READ, discard, program
from tests.end_to_end.harness import environment

HEAD = "import sys; from service.program import program\n"
CALLED = "sys.exit(program(main)([]))\n"


def unread(code: str, with_errors: bool = False, unbuffered: str = "") -> tuple[int, str]:
    """Exit status and standard error of a program whose output, errors too if asked for, nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            stdout=writing,
            stderr=writing if with_errors else subprocess.PIPE,
            env={**environment(), "PYTHONUNBUFFERED": unbuffered},
            text=True,
        )
    finally:
        os.close(writing)
    return ended.returncode, ended.stderr or ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("module", ["service.cli", "loadtest.cli", "loadtest.bench.cli"])
def test_the_reader_left(module: str, unbuffered: str) -> None:
    """A command says nothing of it, whether it is found out while it prints or at its end."""
    status, said = unread(f"import sys; from {module} import main; sys.exit(main(['--help']))", unbuffered=unbuffered)
    assert status in (0, NOT_READ)
    assert said == ""


@pytest.mark.parametrize("with_errors", [False, True])
def test_a_table_that_nobody_reads(with_errors: bool) -> None:
    """What prints more than a buffer holds ends there, with the status of a program that SIGPIPE ended."""
    lines = "for _ in range(10000): print('| cell | cell |', file=sys.stderr if WITH_ERRORS else sys.stdout)"
    code = f"{HEAD}def main(argv):\n {lines}\n{CALLED}".replace("WITH_ERRORS", str(with_errors))
    assert unread(code, with_errors) == (NOT_READ, "")


def test_only_errors_are_not_read() -> None:
    """A service whose log has no reader any more ends with its own status."""
    code = f"{HEAD}def main(argv):\n try: print('x', file=sys.stderr)\n except OSError: pass\n return 0\n{CALLED}"
    assert unread(code, with_errors=True) == (0, "")


def test_broken_pipes_of_others() -> None:
    """Where standard output is read, a broken pipe is a fault, and seen as one."""

    @program
    def main(argv: Sequence[str] | None = None) -> int:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        main([])


def test_an_interrupt() -> None:
    """Ctrl-C ends it with the status that shells know, and no traceback."""

    @program
    def main(argv: Sequence[str] | None = None) -> int:
        raise KeyboardInterrupt

    assert main([]) == INTERRUPTED


def test_discard() -> None:
    """What a buffer holds, and what comes later, goes nowhere, without an error."""
    reading, writing = os.pipe()
    os.close(reading)
    with io.TextIOWrapper(io.FileIO(writing, "w"), write_through=False) as stream:
        stream.write("before")
        discard(stream)
        stream.write("after")
        stream.flush()


def test_a_banner_that_nobody_reads() -> None:
    """It does not keep the service from serving."""
    code = (
        "import sys; from types import SimpleNamespace as S; from service.banner import show_banner\n"
        "encoder = S(encode=lambda texts, options: [S(ids=bytes(8))])\n"
        "show_banner('always', S(default=S(state='ready', name='m', ready_tokenizer=encoder)), ['unix:/s'])\n"
        "print('and later', flush=True)"
    )
    assert unread(code) == (0, "")
