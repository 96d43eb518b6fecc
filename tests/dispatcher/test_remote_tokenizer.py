"""Promises of dispatcher.remote_tokenizer: the same tokenizer in another process, which may be lost at any time."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dispatcher import model_process, tokenizer_process
from dispatcher.errors import EngineFault, InvalidOption, InvalidText, ModelAway
from dispatcher.meter import ThreadClocks
from dispatcher.model_calls import METHODS
from dispatcher.model_process import NOTHING, ModelProcess
from dispatcher.remote_tokenizer import RemoteTokenizer
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError, TokenizerFileError
from tests.data import corpus_windows, tokenizer_json
from tests.engine_rig import added, holdings, is_alive, until
from tests.fakes import LIMIT_S, Gate

FAMILY = "split_bpe"
ROOT = Path(__file__).parents[2]


def load_remote_tokenizer(data: bytes, clocks: ThreadClocks, cache_dir: Path | None = None) -> RemoteTokenizer:
    """A file's tokenizer in a process of its own."""
    return RemoteTokenizer(ModelProcess(data, {"cache_dir": cache_dir}, clocks))


def end(tokenizer: RemoteTokenizer) -> None:
    """End its process and wait until it is gone."""
    tokenizer.process.close()
    tokenizer.process.join()


@pytest.fixture
def clocks() -> ThreadClocks:
    """Where the process's CPU time is counted."""
    return ThreadClocks()


@pytest.fixture
def remote(clocks: ThreadClocks, tmp_path: Path) -> Iterator[RemoteTokenizer]:
    """A tokenizer in a process of its own."""
    tokenizer = load_remote_tokenizer(tokenizer_json(FAMILY), clocks, cache_dir=tmp_path)
    yield tokenizer
    end(tokenizer)


def fields_of(result: EncodedDocument) -> list[Any]:
    """A result in a form that can be compared."""
    arrays = (result.char_offsets, result.byte_offsets, result.special_tokens_mask)
    lists = [None if array is None else array.tolist() for array in arrays]
    return [result.ids, result.n_tokens, result.truncated, result.token_strings, *lists]


def has_ended(pid: int) -> bool:
    """Whether there is no such process, not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def pid_of(remote: RemoteTokenizer) -> int:
    """The process that answers now."""
    pid = remote.process.pid
    assert pid is not None
    return pid


def test_everything_is_the_same(remote: RemoteTokenizer, tmp_path: Path) -> None:
    """Facts, results of every kind, errors, and what was counted."""
    here = load_tokenizer(tokenizer_json(FAMILY), cache_dir=tmp_path)
    for name in ("spec", "engine", "engine_version", "vocab_size", "max_id", "special_tokens"):
        assert getattr(remote, name) == getattr(here, name), name
    documents = [
        "",
        "\x00 It's été\u017f '\u017f 漢字 😀\n",
        *(sample.text for sample in corpus_windows(2, 4_000, seed=3)),
    ]
    everything = EncodeOptions(char_offsets=True, byte_offsets=True, token_strings=True, special_tokens_mask=True)
    for options in (EncodeOptions(), EncodeOptions(max_tokens=3, truncation_side="left"), everything):
        expected = [fields_of(result) for result in here.encode(documents, options)]
        assert [fields_of(result) for result in remote.encode(documents, options)] == expected
        assert fields_of(remote.reference_encode(documents[1], options)) == expected[1]
    ids = np.frombuffer(remote.encode([documents[1]], EncodeOptions())[0].ids, np.uint32)
    assert here.encode([documents[1]], EncodeOptions())[0].ids == ids.tobytes()
    for skip in (True, False):
        assert remote.decode([ids, ids[:0]], skip) == here.decode([ids, ids[:0]], skip)
    assert remote.tokens_of(ids) == here.tokens_of(ids)
    assert remote.token_to_id("a") == here.token_to_id("a")
    assert remote.counters() == here.counters()
    with pytest.raises(InvalidText, match="lone surrogate at character 1"):
        remote.encode(["a\ud800"], EncodeOptions())
    with pytest.raises(InvalidOption):
        remote.encode(["a"], EncodeOptions(max_tokens=-1))
    with pytest.raises(EngineFault):
        remote.process.call("close")


def test_no_method_is_forgotten() -> None:
    """What a tokenizer can do is done by the process, but for what needs its facts only and for documents in halves."""
    methods = {name for name, value in vars(Tokenizer).items() if callable(value) and not name.startswith("_")}
    methods -= {"finisher", "half_ids", "joined"}
    assert methods <= set(vars(RemoteTokenizer))
    assert methods - {"counters", "halves"} == METHODS


def test_documents_stay_whole(remote: RemoteTokenizer) -> None:
    """However long: the process has one call for them."""
    assert remote.halves("word " * 100_000) is None


def test_normalizer(remote: RemoteTokenizer) -> None:
    """The reference's, of a file that has one."""
    assert remote.normalize("e\u0301\u212b") == "\u00e9\u00c5"


def test_many_threads(remote: RemoteTokenizer) -> None:
    """More of them than the process has connections, each with its own ids."""
    documents = [f"document {i} of many " * (1 + i % 7) for i in range(24)]
    expected = [remote.encode([document], EncodeOptions()) for document in documents]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(20) if remote.encode([documents[i]], EncodeOptions()) != expected[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(documents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def answered_by(remote: RemoteTokenizer, document: str) -> list[EncodedDocument]:
    """What the process that is started next answers."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        try:
            return remote.encode([document], EncodeOptions())
        except ModelAway:
            assert time.monotonic() < until_s
            time.sleep(0.01)


class Calls:
    """Calls of several threads at the same time, all with one document."""

    def __init__(self, remote: RemoteTokenizer, document: str, n_times: int, n_threads: int = 4) -> None:
        self.answers: list[EncodedDocument] = []
        self.errors: list[SidetokError] = []

        def work() -> None:
            try:
                self.answers.extend(remote.encode([document] * n_times, EncodeOptions()))
            except SidetokError as error:
                self.errors.append(error)

        self._threads = [threading.Thread(target=work) for _ in range(n_threads)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the last one."""
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_a_process_that_is_killed_comes_back(remote: RemoteTokenizer, clocks: ThreadClocks) -> None:
    """Calls under way are answered or told to try again, and nobody waits; later ones are answered; counts and CPU
    time only grow; the old process is gone.
    """
    document = " ".join(sample.text for sample in corpus_windows(8, 20_000, seed=5))
    (expected,) = remote.encode([document], EncodeOptions())
    n_before, cpu_before_ns, pid = remote.counters().documents[remote.engine], clocks.snapshot(), pid_of(remote)
    calls = Calls(remote, document, 8)
    os.kill(pid, signal.SIGKILL)
    calls.join()
    assert all(answer == expected for answer in calls.answers)
    assert all(isinstance(error, ModelAway) for error in calls.errors)
    assert len(calls.answers) // 8 + len(calls.errors) == 4
    assert answered_by(remote, document) == [expected]
    assert pid_of(remote) != pid
    assert has_ended(pid)
    assert remote.counters().documents[remote.engine] > n_before
    assert clocks.snapshot()["model_process"] > cpu_before_ns["model_process"] > 0


def hold_starts(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Where every process waits that is to be started from now on."""
    gate = Gate()

    class HeldProcess(model_process._Process):
        def __init__(self, *arguments: Any) -> None:
            gate.go_through()
            super().__init__(*arguments)

    monkeypatch.setattr(model_process, "_Process", HeldProcess)
    return gate


def stop(pid: int) -> None:
    """Stop a process, and wait until none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: model_process._is_stopped(pid))


def test_a_process_that_is_stopped_is_replaced(remote: RemoteTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers get an error soon, more of them than there are connections, and the next process answers."""
    (expected,) = remote.encode(["a"], EncodeOptions())
    pid, starts = pid_of(remote), hold_starts(monkeypatch)
    stop(pid)
    calls = Calls(remote, "a" * 5_000_000, 1, n_threads=12)
    calls.join()
    starts.open()
    assert [type(error) for error in calls.errors] == [ModelAway] * 12
    assert answered_by(remote, "a") == [expected]
    assert has_ended(pid)


class ShownClock:
    """The clock of a process: it shows what the test says."""

    def __init__(self, process: model_process._Process) -> None:
        self.goes = False
        """Whether CPU time is used from look to look."""
        self.n_looks = self._shown_ns = 0
        self.end = process._clock.end
        process._clock = cast(Any, self)

    def read(self) -> int:
        """One look."""
        self.n_looks += 1
        self._shown_ns += self.goes
        return self._shown_ns

    def wait_long(self) -> None:
        """Wait for more looks than a process may be silent for."""
        enough = self.n_looks + 3 * model_process.SILENT_LOOKS
        until(lambda: self.n_looks > enough)


def test_a_process_that_works_for_long_is_left_alone(remote: RemoteTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What uses CPU time does not hang, and neither does one that nobody asks for anything."""
    monkeypatch.setattr(model_process, "LOOK_S", 0.002)
    process, pid = remote.process._process, pid_of(remote)
    assert process is not None
    clock = ShownClock(process)
    clock.wait_long()
    clock.goes = True
    stop(pid)
    calls = Calls(remote, "a", 1, n_threads=1)
    until(lambda: process.idle.qsize() < len(process.connections))
    clock.wait_long()
    os.kill(pid, signal.SIGCONT)
    calls.join()
    assert (len(calls.answers), calls.errors) == (1, [])
    assert pid_of(remote) == pid


class Stop:
    """An option that stops the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.raise_signal, (int(signal.SIGSTOP),)


def test_a_process_that_is_stopped_while_it_loads(clocks: ThreadClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load fails; it does not keep all later ones waiting."""
    # What is silent for long is ended too, but not here: this one is seen to be stopped.
    monkeypatch.setattr(model_process, "LOOK_S", 0.05)
    monkeypatch.setattr(model_process, "SILENT_LOOKS_LOADING", 1 << 60)
    process = ModelProcess(tokenizer_json(FAMILY), {"cache_dir": Stop()}, clocks)
    giving_up = threading.Timer(LIMIT_S, process.close)
    giving_up.start()
    with pytest.raises(EngineFault, match=r"^The process of this model ended while it loaded\.$"):
        process.start()
    giving_up.cancel()
    assert not process._is_closed
    assert not process.is_running
    assert process._newest is not None
    assert has_ended(process._newest.running.pid)


PARENT = """
import sys, time
from dispatcher.meter import ThreadClocks
from dispatcher.model_process import ModelProcess
from dispatcher.remote_tokenizer import RemoteTokenizer
tokenizer = RemoteTokenizer(ModelProcess(sys.stdin.buffer.read(), {"cache_dir": None}, ThreadClocks()))
print(tokenizer.process.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_its_parent_in_any_state() -> None:
    """Also when the one is killed and the other is stopped."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(tokenizer_json(FAMILY))
        parent.stdin.close()
        pid = int(parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
    until(lambda: not is_alive(pid))


def test_a_call_that_breaks_the_process_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for a result, say: the other end must not wait for ever."""

    class Broken:
        counters = staticmethod(lambda: NOTHING)
        token_to_id = staticmethod(lambda _token: threading.Lock())

    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    ours, theirs = (Connection(sock.detach()) for sock in socket.socketpair())
    with ours, theirs:
        ours.send(("token_to_id", ("a",)))
        with pytest.raises(SystemExit):
            tokenizer_process._serve(theirs, Broken())  # type: ignore[arg-type]


def test_it_ends_with_its_last_user(clocks: ThreadClocks, tmp_path: Path) -> None:
    """Nobody has to say so: requests under way hold the tokenizer, too."""
    tokenizer: RemoteTokenizer | None = load_remote_tokenizer(tokenizer_json(FAMILY), clocks, cache_dir=tmp_path)
    assert tokenizer is not None
    pid, process = pid_of(tokenizer), tokenizer.process
    tokenizer = None
    gc.collect()
    until(lambda: has_ended(pid))
    with pytest.raises(ModelAway, match="not there"):
        process.call("token_to_id", "a")
    cpu_ns = clocks.snapshot()["model_process"]
    assert cpu_ns > 0
    assert clocks.snapshot()["model_process"] == cpu_ns


def test_signals_to_the_group_do_not_end_it(remote: RemoteTokenizer) -> None:
    """What is in flight when a service is told to stop is still answered."""
    pid = pid_of(remote)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert remote.token_to_id("a") is not None
    assert pid_of(remote) == pid


def test_nobody_waits_for_a_process_that_is_started(clocks: ThreadClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed, and looked at, at once; the process that comes then ends at once."""
    starts = hold_starts(monkeypatch)
    process, errors = ModelProcess(tokenizer_json(FAMILY), {"cache_dir": None}, clocks), list[BaseException]()

    def start() -> None:
        try:
            process.start()
        except EngineFault as error:
            errors.append(error)

    def look_and_close() -> None:
        process.counters()
        process.close()

    starting, closing = threading.Thread(target=start), threading.Thread(target=look_and_close)
    starting.start()
    starts.wait_entered()
    closing.start()
    closing.join(LIMIT_S / 2)
    was_held_up = closing.is_alive()
    starts.open()
    starting.join()
    assert not was_held_up
    assert len(errors) == 1
    assert not process.is_running


class EndedProcess(model_process._Process):
    """One that has ended by the time that its error is told."""

    def load(self, *arguments: Any) -> Any:
        """See `_Process`."""
        try:
            return super().load(*arguments)
        finally:
            until(lambda: not is_alive(self.running.pid))


def test_a_file_that_cannot_be_loaded(clocks: ThreadClocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of `load_tokenizer`; no process and no thread is left, and what it used is counted."""
    monkeypatch.setattr(model_process, "_Process", EndedProcess)
    with pytest.raises(TokenizerFileError) as here:
        load_tokenizer(b"{}", cache_dir=None)
    before = holdings()
    with pytest.raises(TokenizerFileError) as there:
        load_remote_tokenizer(b"{}", clocks)
    assert str(there.value) == str(here.value)
    # The thread has told the reason, and is about to end.
    until(lambda: added(before) == [])
    assert clocks.snapshot()["model_process"] > 0
