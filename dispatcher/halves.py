"""A long document that takes long in two halves, on two CPUs, while one of them would idle.

    worker    read ─► cut ─┬─ first half ─────► join ─► write
    helper                 └─ second half ─┘

The work is the same, but for the cut and what the helper's caches lack. It is done so only where that is little beside
what is won, and where nobody else has a use for the CPU: no other job waits or runs, and fewer threads want to run on
the host than this process has CPUs. A half that the helper has not begun when the worker is done with the other one is
the worker's, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from dispatcher.bell import Bell
from dispatcher.costs import content_kind
from dispatcher.cpus import Runnable
from dispatcher.engines.engine import is_fault
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.tokenizer import Tokenizer
from dispatcher.work_queue import WorkQueue

MIN_CHARS = 32_768
"""Shorter documents are never looked at."""
SLOW_NS = 2_500_000
"""What a document has to take. Below, half of it is not much more than the helper's wake-up and cold caches."""
SMOOTHING = 0.2
CLOSE_S = 0.05


class Share:
    """One half, encoded by who comes first."""

    def __init__(self, encode: Callable[[str], bytes], half: str) -> None:
        self._encode, self._half = encode, half
        self._claim, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self._ids: bytes | None = None
        self._error: BaseException | None = None

    def begin(self) -> bool:
        """Take it; true for one caller, who encodes it and says when it has ended."""
        return self._claim.acquire(blocking=False)

    def encode(self) -> None:
        """Encode it here. Raises nothing."""
        try:
            self._ids = self._encode(self._half)
        except BaseException as error:  # native engines raise panics that are no `Exception`
            self._error = error

    def end(self) -> None:
        """Let go whoever waits for its ids."""
        self._ended.release()

    def ids(self) -> bytes:
        """Its ids, encoded here unless somebody else has begun; raises what the engine raised."""
        if self.begin():
            self.encode()
            self.end()
        with self._ended:
            if self._ids is None:
                assert self._error is not None
                raise self._error
            return self._ids


class Helper(threading.Thread):
    """Encodes shares, one at a time, and counts its CPU time."""

    def __init__(self) -> None:
        super().__init__(name="sidetok-helper", daemon=True)
        self._bell = Bell()
        self._share: Share | None = None
        self._closed = False
        self.cpu_ns = 0
        """Of the thread, as of the end of its latest share."""

    def take(self, share: Share) -> None:
        """Begin with a share, if nobody else does before this thread is awake."""
        self._share = share
        self._bell.ring()

    def close(self) -> None:
        """End the thread; it is left behind when it is at a share."""
        self._closed = True
        self._bell.ring()
        self.join(CLOSE_S)
        if not self.is_alive():
            self._bell.close()

    def run(self) -> None:
        """The thread."""
        while True:
            self._bell.wait()
            if self._closed:
                break
            share, self._share = self._share, None
            if share is not None and share.begin():
                share.encode()
                self.cpu_ns = time.thread_time_ns()
                share.end()
            # It may sleep for hours, and must not hold a text.
            share = None


class Halves:
    """One for all workers; one document at a time."""

    def __init__(
        self, queue: WorkQueue, n_workers: int, n_cpus: int, runnable: Callable[[], int] | None = None
    ) -> None:
        """`n_cpus` are those of the process, `runnable` says how many threads of the host want to run."""
        self._queue = queue
        self._n_workers = n_workers
        self._n_cpus = n_cpus
        self._runnable = runnable or Runnable().count
        self._lock = threading.Lock()
        self._helper: Helper | None = None
        self._seen: WeakKeyDictionary[Tokenizer, dict[str, float]] = WeakKeyDictionary()
        """What a character takes lately, in ns of CPU time, by kind of content."""

    def encode(self, tokenizer: Tokenizer, document: str, options: EncodeOptions) -> tuple[EncodedDocument, int]:
        """The result for a document that the calling worker is at, and the CPU time of the helper for it, in ns.

        Raises what `Tokenizer.encode` does.
        """
        if len(document) < MIN_CHARS:
            return tokenizer.encode([document], options)[0], 0
        kind, seen = content_kind(document), self._seen.setdefault(tokenizer, {})
        start_ns = time.thread_time_ns()
        helped = None
        if seen.get(kind, 0.0) * len(document) > SLOW_NS and self._lock.acquire(blocking=False):
            try:
                helped = self._in_halves(tokenizer, document, options)
            finally:
                self._lock.release()
        result, helped_ns = helped or (tokenizer.encode([document], options)[0], 0)
        took = (time.thread_time_ns() - start_ns + helped_ns) / len(document)
        seen[kind] = seen.get(kind, took) * (1.0 - SMOOTHING) + took * SMOOTHING
        return result, helped_ns

    def close(self) -> None:
        """Help no more. A helper that is at a share now is left behind."""
        self._n_cpus = 0
        if self._lock.acquire(blocking=False):
            helper, self._helper = self._helper, None
            if helper is not None:
                helper.close()
            self._lock.release()

    def _is_cpu_idle(self) -> bool:
        queue = self._queue
        if self._n_cpus < 2 or queue.n_waiting or queue.n_idle < self._n_workers - 1:
            return False
        return self._runnable() < self._n_cpus

    def _in_halves(
        self, tokenizer: Tokenizer, document: str, options: EncodeOptions
    ) -> tuple[EncodedDocument, int] | None:
        """None when it has to be encoded as all others are."""
        if not self._is_cpu_idle() or tokenizer.finisher(options) is None:
            return None
        halves = tokenizer.halves(document)
        if halves is None:
            return None
        if self._helper is None:
            self._helper = Helper()
            self._helper.start()
        helper = self._helper
        before_ns = helper.cpu_ns
        second = Share(tokenizer.half_ids, halves[1])
        helper.take(second)
        try:
            ids = tokenizer.half_ids(halves[0]), second.ids()
        except BaseException as error:
            if not is_fault(error):
                raise
            # Encoded as a whole, it fails in the right way, or the reference answers.
            return None
        return tokenizer.joined(ids, options), helper.cpu_ns - before_ns
