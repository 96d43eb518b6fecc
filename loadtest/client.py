"""An open-loop client: one thread that starts each request at its time and never waits for another's answer to do so.

When no connection is free, a request waits for one; its latency counts from the intended start all the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadtest.api import Api
from loadtest.connection import Connection, ConnectionClosed
from loadtest.plan import BATCH, CONVERSATION, PROBE, Plan
from loadtest.poller import READ, WRITE, Poller
from loadtest.pool import Pool
from loadtest.target import Target
from loadtest.wire import Answer, Buffer, MalformedAnswer, Wire

PENDING = 0
TIMED_OUT, CANNOT_CONNECT, CLOSED, MALFORMED, NOT_SENT = -1, -2, -3, -4, -5
OUTCOMES = {
    TIMED_OUT: "timed out",
    CANNOT_CONNECT: "cannot connect",
    CLOSED: "connection closed",
    MALFORMED: "malformed answer",
    NOT_SENT: "not sent: no connection became free in time",
}
"""Outcomes that are no HTTP status."""
SCRATCH_BYTES = 1 << 18
MAX_SWEEP_NS = 50_000_000
PROGRESS_NS = 100_000_000
REQUEST_BYTES = 512
"""What a request that is made before its turn takes beside its own bytes, about."""


@dataclass(slots=True)
class Record:
    """What became of each request. Times are nanoseconds since the start of the schedule; 0 = never."""

    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    outcome: NDArray[np.int16]
    """HTTP status, or one of `OUTCOMES`."""
    n_bytes: NDArray[np.int64]
    """Of the answer's body."""
    answers: dict[int, Answer] = field(default_factory=dict)
    """The answers whose ids are checked, by row."""
    n_connections: int = 0
    """Opened in all."""
    spun_ns: int = 0
    """CPU time spent on being on time, while there was nothing to do."""


class Client:
    """Sends one plan. Not reusable."""

    def __init__(
        self,
        plan: Plan,
        pool: Pool,
        target: Target,
        wire: Wire,
        api: Api,
        *,
        connections: int,
        timeout_s: float,
        probe: str = "/",
    ) -> None:
        """`probe` is the path of requests that are probes."""
        n = len(plan)
        self.record = Record(np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int16), np.zeros(n, np.int64))
        self._plan, self._pool, self._target, self._wire, self._api = plan, pool, target, wire, api
        # Lists: reading single numbers out of arrays is slow.
        self._at_ns: list[int] = plan.at_ns.tolist()
        self._kind: list[int] = plan.kind.tolist()
        self._checked: list[bool] = plan.checked.tolist()
        self._first: list[int] = plan.first_document.tolist()
        self._start: list[int] = plan.start.tolist()
        self._end: list[int] = (plan.start + plan.length).tolist()
        self._probe = probe
        self._limit = max(1, connections)
        self._timeout_ns = int(timeout_s * 1e9)
        self._poller = Poller()
        self._open: dict[int, Connection] = {}
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        self._unsent: set[int] = set()
        """Descriptors of connections that did not take all of a request."""
        self._made: dict[int, list[Buffer]] = {}
        """Requests that were made before their turn."""
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._next = 0
        self._n_done = 0
        self._start_ns = 0

    def prepare(self, n_bytes: int) -> None:
        """Make the first requests, for about so many bytes of memory: each takes as long as a server that is fast."""
        row = 0
        while row < len(self._at_ns) and n_bytes > 0:
            # Some encoders leave kilobytes of room behind a short request; a copy has none.
            made = [bytes(memoryview(buffer)) if isinstance(buffer, bytes) else buffer for buffer in self._buffers(row)]
            self._made[row] = made
            n_bytes -= REQUEST_BYTES + sum(map(len, made))
            row += 1

    def run(self, start_ns: int, progress: Callable[[int], None] = lambda n_done: None) -> Record:
        """Send everything and return when all is answered or lost.

        `start_ns` is the schedule's zero on the monotonic clock. No request is waited for longer than its timeout,
        whatever the server does.
        """
        self._start_ns = start_ns
        sweep_ns = min(MAX_SWEEP_NS, max(1_000_000, self._timeout_ns // 4))
        next_sweep = next_progress = start_ns
        while self._n_done < len(self._at_ns):
            now = time.monotonic_ns()
            self._take_due(now - start_ns)
            self._dispatch()
            if not self.is_sending:
                self._make_next()
            if now >= next_sweep:
                self._sweep(now - start_ns)
                next_sweep = now + sweep_ns
            if now >= next_progress:
                progress(self._n_done)
                next_progress = now + PROGRESS_NS
            for fd, events in self._poller.wait(self._pause_ns(next_sweep)):
                self._handle(fd, events)
        for connection in list(self._open.values()):
            self._close(connection)
        self._poller.close()
        self.record.spun_ns = self._poller.spun_ns
        return self.record

    @property
    def is_sending(self) -> bool:
        """Whether a part of some request is still to be sent: what takes time now counts as the server's."""
        return bool(self._unsent)

    def _pause_ns(self, next_sweep: int) -> int:
        now = time.monotonic_ns()
        if self._next < len(self._at_ns):
            return min(next_sweep, self._start_ns + self._at_ns[self._next]) - now
        return next_sweep - now

    def _take_due(self, now_ns: int) -> None:
        at_ns, n = self._at_ns, len(self._at_ns)
        while self._next < n and at_ns[self._next] <= now_ns:
            self._waiting.append(self._next)
            self._next += 1

    def _dispatch(self) -> None:
        while self._waiting:
            if self._idle:
                connection = self._idle.pop()
            elif len(self._open) < self._limit:
                try:
                    connection = self._connect()
                except BlockingIOError:
                    # A Unix socket whose queue of connections is full; tried again later, while the clock runs.
                    return
                except OSError:
                    self._finish(self._waiting.popleft(), CANNOT_CONNECT)
                    continue
            else:
                return
            self._begin(connection, self._waiting.popleft())

    def _connect(self) -> Connection:
        connection = Connection(self._target, self._wire.reader())
        self._open[connection.fd] = connection
        self._poller.add(connection.fd, READ)
        self.record.n_connections += 1
        return connection

    def _buffers(self, row: int) -> list[Buffer]:
        kind, first, last = self._kind[row], self._first[row], self._first[row + 1] - 1
        if kind == PROBE:
            return self._wire.question(self._probe)
        if kind == CONVERSATION and not self._api.wants_messages:
            documents = [self._pool.data[self._start[first] : self._end[last]]]
        else:
            documents = [self._pool.data[self._start[k] : self._end[k]] for k in range(first, last + 1)]
        path = self._api.batch_path if kind == BATCH else self._api.path
        return self._wire.request(path, self._api.content_type, self._api.body(kind, documents))

    def _make_next(self) -> None:
        """Make the request that waits for a connection, so that nobody's rate holds the time that this takes."""
        if self._waiting and (row := self._waiting[0]) not in self._made:
            self._made[row] = self._buffers(row)

    def _begin(self, connection: Connection, row: int) -> None:
        buffers = self._made.pop(row, None) or self._buffers(row)
        self.record.sent_ns[row] = time.monotonic_ns() - self._start_ns
        try:
            sent = connection.begin(row, buffers, self._checked[row])
        except (ConnectionClosed, OSError) as error:
            self._lose(connection, error)
            return
        if not sent:
            self._unsent.add(connection.fd)
            self._poller.change(connection.fd, READ | WRITE)

    def _handle(self, fd: int, events: int) -> None:
        connection = self._open.get(fd)
        if connection is None:
            return
        try:
            # Errors and the end of the stream are read, too; a refusal may come before all of a request was sent.
            answer = connection.read(self._scratch) if events & ~WRITE else None
            if answer is None and events & WRITE and connection.flush():
                self._unsent.discard(fd)
                self._poller.change(fd, READ)
        except (ConnectionClosed, MalformedAnswer, OSError) as error:
            self._lose(connection, error)
            return
        if answer is not None:
            self._answered(connection, answer)

    def _answered(self, connection: Connection, answer: Answer) -> None:
        row, connection.row = connection.row, -1
        self.record.n_bytes[row] = answer.n_bytes
        if self._checked[row] and answer.status == 200:
            self.record.answers[row] = answer
        self._finish(row, answer.status)
        if connection.reusable:
            self._idle.append(connection)
        else:
            self._close(connection)

    def _lose(self, connection: Connection, error: Exception) -> None:
        """A connection is gone, and with it the request on it."""
        if connection.row >= 0:
            if isinstance(error, MalformedAnswer):
                outcome = MALFORMED
            else:
                outcome = CLOSED if isinstance(error, ConnectionClosed) else CANNOT_CONNECT
            self._finish(connection.row, outcome)
        self._close(connection)

    def _sweep(self, now_ns: int) -> None:
        """Give up what is over its timeout."""
        latest = now_ns - self._timeout_ns
        while self._waiting and self._at_ns[self._waiting[0]] <= latest:
            self._finish(self._waiting.popleft(), NOT_SENT)
        for connection in list(self._open.values()):
            if connection.row >= 0 and self._at_ns[connection.row] <= latest:
                self._finish(connection.row, TIMED_OUT)
                self._close(connection)

    def _finish(self, row: int, outcome: int) -> None:
        self.record.done_ns[row] = time.monotonic_ns() - self._start_ns
        self.record.outcome[row] = outcome
        self._n_done += 1
        # What was never sent was perhaps made.
        self._made.pop(row, None)

    def _close(self, connection: Connection) -> None:
        self._poller.remove(connection.fd)
        self._unsent.discard(connection.fd)
        del self._open[connection.fd]
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()
