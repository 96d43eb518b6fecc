"""This end of a process with a tokenizer: starts it, calls it, and starts it again when it was lost.

A load holds the interpreter for up to a second, which only another process can keep from everybody else.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dispatcher.cpus import usable_cpus
from dispatcher.errors import EngineFault, ModelAway
from dispatcher.gpu.child import python_command
from dispatcher.gpu.restarts import Restarts
from dispatcher.meter import ThreadClocks
from dispatcher.model_calls import Facts, Reply
from dispatcher.tokenizer import TokenizerCounts
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.model_process")

PROGRAM = "dispatcher.tokenizer_process"
MIN_CALLS = 4
"""Calls that are answered at the same time, as there are workers; one for each CPU if there are more."""
LOOK_S = 0.5
"""How often it is looked whether a process that is asked for something works."""
SILENT_LOOKS, SILENT_LOOKS_LOADING = 10, 40
"""Looks in a row without an answer and without CPU time after which it hangs. One that was stopped by a signal: two."""
MIN_RESTART_S, MAX_RESTART_S = 0.05, 30.0
CLOSE_S = 2.0
NOTHING = TokenizerCounts({}, {}, 0)


class _Lost(Exception):
    """The process ended in the middle of a call."""


class _Process:
    """One process, from its start to its end."""

    def __init__(self, n_calls: int, clocks: ThreadClocks) -> None:
        pairs = [socket.socketpair() for _ in range(n_calls)]
        theirs = [pair[1] for pair in pairs]
        self.connections = [Connection(pair[0].detach()) for pair in pairs]
        self.idle: SimpleQueue[Connection] = SimpleQueue()
        for connection in self.connections:
            self.idle.put(connection)
        numbers = [end.fileno() for end in theirs]
        command = [*python_command(PROGRAM), ",".join(map(str, numbers)), str(os.getpid())]
        self.running = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=numbers)
        for end in theirs:
            end.close()
        self._ending = threading.RLock()
        self._clock = clocks.register_process("model_process", self.running.pid)
        self.ready_s = 0.0
        self.is_lost = False
        self._closed: list[Connection] = []
        self._guard = threading.Thread(target=self._end_if_silent, name="sidetok-model-process", daemon=True)
        self._guard.start()

    def load(self, data: bytes, options: dict[str, Any]) -> Facts:
        """What the process says of the tokenizer. Raises its error, or `_Lost`."""
        first = self.connections[0]
        try:
            first.send(options)
            first.send_bytes(data)
            facts = first.recv()
        except (EOFError, OSError):
            raise _Lost from None
        if isinstance(facts, SidetokError):
            raise facts
        assert isinstance(facts, Facts)
        self.ready_s = time.monotonic()
        return facts

    def call(self, name: str, arguments: tuple[Any, ...]) -> Reply:
        """Raises `_Lost`."""
        connection = self.idle.get()
        try:
            connection.send((name, arguments))
            reply = connection.recv()
        except (EOFError, OSError):
            raise _Lost from None
        finally:
            self.idle.put(connection)
        assert isinstance(reply, Reply)
        return reply

    def kill(self) -> None:
        """End the process, unless it has ended."""
        # Not `Popen.kill`: that waits for one that has ended, and then nobody can read its clock any more.
        with self._ending, contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self.running.returncode is None:
                # Whoever embeds this may have waited for it. Then its number is nobody's, or another process's soon.
                os.waitid(os.P_PID, self.running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.kill(self.running.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the end of the process. Calls under way fail, and so do all later ones."""
        # Whoever embeds this may wait for all children.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.running.pid, os.WEXITED | os.WNOWAIT)
        self.is_lost = True
        # It looks at the clock, too, whose number is another process's soon.
        self._guard.join()
        self._clock.end()
        with self._ending:
            self.running.wait()
        # Each comes back when its call has failed; a closed one goes on failing.
        for _ in self.connections:
            connection = self.idle.get()
            connection.close()
            self._closed.append(connection)
        for connection in self._closed:
            self.idle.put(connection)

    def _end_if_silent(self) -> None:
        """The thread: a process that hangs would hold the worker of every call for ever."""
        end = select.poll()
        # No events but the other end's closing, which is the end of the process.
        end.register(self.connections[0].fileno(), 0)
        n_silent, used_ns = 0, -1
        while not end.poll(LOOK_S * 1000):
            before_ns, used_ns = used_ns, self._clock.read()
            is_loading = not self.ready_s
            is_asked = is_loading or self.idle.qsize() < len(self.connections)
            n_silent = n_silent + 1 if is_asked and used_ns == before_ns else 0
            limit = SILENT_LOOKS_LOADING if is_loading else SILENT_LOOKS
            if n_silent >= limit or (n_silent > 1 and _is_stopped(self.running.pid)):
                log.error("the process of a model hangs and is ended", extra={"pid": self.running.pid})
                self.kill()
                return


class ModelProcess:
    """A process with a tokenizer that is there again soon after it was lost. Any thread may call it."""

    def __init__(self, data: bytes, options: dict[str, Any], clocks: ThreadClocks) -> None:
        """`data`: the file. `options`: those of `load_tokenizer`. Its CPU time is counted as part `model_process`."""
        self._data, self._options, self._clocks = data, options, clocks
        self._n_calls = max(MIN_CALLS, usable_cpus())
        self._changed = threading.Condition()
        self._newest: _Process | None = None
        self._process: _Process | None = None
        self._is_closed = False
        self._restarts = Restarts(MIN_RESTART_S, MAX_RESTART_S, random.random)
        self._of_ended = self._of_present = NOTHING
        self._watcher: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process that answers now; None while there is none."""
        process = self._process
        return None if process is None or process.is_lost else process.running.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process, be it one that still loads."""
        process = self._newest
        return process is not None and not process.is_lost

    def start(self) -> Facts:
        """Start the process and load the tokenizer. Raises `TokenizerFileError` with the reason, or `EngineFault`."""
        facts: Future[Facts] = Future()
        # The process ends with the thread that starts it, so that is one that stays.
        self._watcher = threading.Thread(target=self._run, args=(facts,), name="sidetok-model-process", daemon=True)
        self._watcher.start()
        try:
            return facts.result()
        finally:
            # An error holds this frame, and would hold itself and the file.
            del facts

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a method of the tokenizer, or its error. Raises `ModelAway` when there is no process, or none
        any more: nobody waits for the next one here, since whoever waits holds a worker, which others need.
        """
        process = self._process
        if process is None or process.is_lost:
            raise ModelAway("The process of this model is not there; it is being started again. Try again.")
        try:
            reply = process.call(name, arguments)
        except _Lost:
            process.is_lost = True
            raise ModelAway("The process of this model ended while it worked on the request. Try again.") from None
        with self._changed:
            if process is self._process:
                self._of_present = _combined(self._of_present, reply.counts, max)
        if reply.error is not None:
            raise reply.error
        return reply.value

    def counters(self) -> TokenizerCounts:
        """What all processes did that there were, as far as their answers told."""
        with self._changed:
            return _combined(self._of_ended, self._of_present, operator.add)

    def close(self) -> None:
        """End the process. It holds nothing that would be lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if self._newest is not None:
                self._newest.kill()

    def join(self) -> None:
        """Wait until the process is gone, after `close`."""
        if self._watcher is not None:
            self._watcher.join(CLOSE_S)

    def _run(self, first: Future[Facts]) -> None:
        """The thread: start the process, and go on with it if it lives."""
        try:
            with self._clocks.counting("load"):
                process, facts = self._start()
        except BaseException as error:
            first.set_exception(error)
            del first
            return
        first.set_result(facts)
        digest = facts.spec.digest
        del first, facts
        self._watch(process, digest)

    def _start(self) -> tuple[_Process, Facts]:
        with self._changed:
            if self._is_closed:
                raise EngineFault("The process of this model was ended.")
        # A start takes a while, for which nobody waits who closes or counts.
        process = _Process(self._n_calls, self._clocks)
        with self._changed:
            self._newest = process
            if self._is_closed:
                process.kill()
        try:
            facts = process.load(self._data, self._options)
        except BaseException as error:
            process.kill()
            process.reap()
            if isinstance(error, _Lost):
                raise EngineFault("The process of this model ended while it loaded.") from None
            raise
        with self._changed:
            self._process = process
        return process, facts

    def _watch(self, process: _Process, digest: str) -> None:
        """Reap the process, start another one, until it is closed."""
        while True:
            process.reap()
            with self._changed:
                self._of_ended = _combined(self._of_ended, self._of_present, operator.add)
                self._of_present = NOTHING
            delay_s = self._restarts.after(time.monotonic() - process.ready_s)
            while not self._closes_within(delay_s):
                log.error("the process of a model ended and is started again", extra={"digest": digest})
                try:
                    process, _facts = self._start()
                    break
                except Exception as error:
                    # No memory or no thread for it, say: without another try the model would be gone for good.
                    reason = str(error) or type(error).__name__
                    log.error("the process could not be started", extra={"digest": digest, "reason": reason})
                    delay_s = self._restarts.after(0)
            else:
                return

    def _closes_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, seconds)


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _combined(a: TokenizerCounts, b: TokenizerCounts, how: Callable[[int, int], int]) -> TokenizerCounts:
    def both(x: dict[str, int], y: dict[str, int]) -> dict[str, int]:
        return {name: how(x.get(name, 0), y.get(name, 0)) for name in x | y}

    return TokenizerCounts(
        both(a.documents, b.documents), both(a.guarded, b.guarded), how(a.engine_faults, b.engine_faults)
    )
