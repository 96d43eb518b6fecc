"""Tables built in a process of their own."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatcher.gpu import table_builder
from dispatcher.gpu.restarts import Restarts
from dispatcher.gpu.table_builder import TableBuilders, read_tables
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables
from tests.data import tokenizer_json
from tests.engine_rig import LIMIT_S, added, holdings, is_alive, until

Built = queue.SimpleQueue[tuple[str, int, str]]


@pytest.fixture
def built() -> Built:
    """What builders said."""
    return queue.SimpleQueue()


@pytest.fixture
def builders(built: Built, tmp_path: Path) -> Iterator[TableBuilders]:
    """Builders with a cache."""
    made = TableBuilders(tmp_path / "cache", lambda *said: built.put(said))
    yield made
    made.close()


def test_tables_are_those_of_this_process(builders: TableBuilders, built: Built, tmp_path: Path) -> None:
    """What the other process builds, and what it finds in the cache afterwards, equals what this one builds."""
    data = tokenizer_json("byte_bpe")
    expected = build_tables(data, read_spec(data))
    for _ in range(2):
        builders.submit("key", data)
        key, fd, reason = built.get(timeout=LIMIT_S)
        assert (key, reason) == ("key", "")
        for _reader in range(2):
            tables = read_tables(fd)
            assert (tables.numbers, tables.defines) == (expected.numbers, expected.defines)
            assert tables.arrays.keys() == expected.arrays.keys()
            assert all(np.array_equal(tables.arrays[name], array) for name, array in expected.arrays.items())
        os.close(fd)
        assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize(("data", "reason"), [(tokenizer_json("word_piece"), "not BPE"), (b"{", "cut off")])
def test_reasons_against_a_tokenizer(builders: TableBuilders, built: Built, data: bytes, reason: str) -> None:
    """A tokenizer that the device cannot serve, and a file that is none, are told with the reason."""
    before = holdings()
    builders.submit("key", data)
    key, fd, said = built.get(timeout=LIMIT_S)
    assert (key, fd) == ("key", -1)
    assert reason in said
    assert not any("sidetok-tables (deleted)" in name for name in added(before))


def test_a_process_that_fails(builders: TableBuilders, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies or takes too long is tried again, ever later, while somebody wants the tokenizer."""
    failures: queue.SimpleQueue[tuple[str, str, float]] = queue.SimpleQueue()

    def on_failed(key: str, reason: str, pause_s: float) -> bool:
        failures.put((key, reason, pause_s))
        return key == "dies"

    delays = partial(Restarts, 0.01, 1.0, lambda: 0.0)
    failing = TableBuilders(None, lambda *said: built.put(said), on_failed, delays)
    monkeypatch.setattr(table_builder, "MODULE", "no.such.module")
    failing.submit("dies", tokenizer_json("byte_bpe"))
    for pause_s in (0.01, 0.02):
        key, reason, after_s = failures.get(timeout=LIMIT_S)
        assert (key, after_s) == ("dies", pause_s)
        assert "status 1" in reason
    monkeypatch.undo()
    key, fd, reason = built.get(timeout=LIMIT_S)
    assert (key, reason) == ("dies", "")
    os.close(fd)
    monkeypatch.setattr(table_builder, "LIMIT_S", 0.0)
    failing.submit("is slow", tokenizer_json("byte_bpe"))
    while (failure := failures.get(timeout=LIMIT_S))[0] != "is slow":
        pass
    assert "seconds" in failure[1]
    failing.close()
    assert built.empty()
    assert not failing._timers


ENDLESS = [sys.executable, "-c", "import time; time.sleep(600)"]
"""A process that builds for ever."""


def test_closing_ends_what_is_under_way(builders: TableBuilders, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `close` nothing is running and nobody hears of what was not finished."""
    monkeypatch.setattr(table_builder, "python_command", lambda module: ENDLESS)
    before = holdings()
    for k in range(5):
        builders.submit(str(k), tokenizer_json("byte_bpe"))
    until(lambda: len(builders._processes) == 2)
    # What is not ended is given up after a while, which is no end that `close` made.
    closer = threading.Thread(target=builders.close)
    closer.start()
    closer.join(LIMIT_S / 2)
    left = list(builders._processes)
    for process in left:
        process.kill()
    closer.join()
    assert left == []
    assert added(before) == []
    assert built.empty()


def test_closing_ends_what_is_just_begun(
    builders: TableBuilders, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is started while `close` ends the others does not keep it waiting."""
    begun, looked = threading.Event(), threading.Event()

    class Processes(set[Any]):
        def __iter__(self) -> Iterator[Any]:
            looked.set()
            return super().__iter__()

    def command(module: str) -> list[str]:
        begun.set()
        assert looked.wait(LIMIT_S)
        return ENDLESS

    builders._processes = Processes()
    monkeypatch.setattr(table_builder, "python_command", command)
    closer = threading.Thread(target=builders.close)
    builders.submit("late", tokenizer_json("byte_bpe"))
    assert begun.wait(LIMIT_S)
    closer.start()
    closer.join(LIMIT_S / 2)
    assert not closer.is_alive()
    assert built.empty()


PARENT = """
import os, subprocess
from dispatcher.gpu.child import python_command
from dispatcher.gpu.table_builder import MODULE
fd = os.memfd_create("tables")
builder = subprocess.Popen([*python_command(MODULE), str(fd), "", str(os.getpid())], pass_fds=(fd,))
print(builder.pid, flush=True)
builder.wait()
"""


def test_it_ends_with_its_parent() -> None:
    """However that ends: also when the builder still waits for the file, which would be for ever here."""
    read_end, write_end = os.pipe()
    try:
        command = [sys.executable, "-c", PARENT]
        with subprocess.Popen(command, stdin=read_end, stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            parent.kill()
        until(lambda: not is_alive(pid))
    finally:
        os.close(read_end)
        os.close(write_end)
