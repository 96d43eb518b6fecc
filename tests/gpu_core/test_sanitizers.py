"""The kernels touch no memory that is not theirs and do nothing undefined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_core.shim import compiler
from tests.data import EMBEDDED

FLAGS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def runtime() -> str | None:
    """The sanitizer's library, which must be loaded before Python's own."""
    cxx = compiler()
    if cxx is None:
        return None
    path = subprocess.run([cxx, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return path if Path(path).is_absolute() else None


@pytest.mark.parametrize("family", ["split_bpe", EMBEDDED, "ours_blanks"])
def test_address_and_undefined_behaviour(family: str, shim_cache: Path) -> None:
    """A process under AddressSanitizer and UndefinedBehaviorSanitizer encodes texts of every kind and ends well."""
    library = runtime()
    if library is None:
        pytest.skip("no C++ compiler with AddressSanitizer")
    settings = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [sys.executable, "-m", "tests.gpu_core.sanitized", family, str(shim_cache), *FLAGS]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "answered" in done.stdout
