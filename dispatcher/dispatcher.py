"""The dispatcher: admitted jobs in, answers out, on the CPU route.

Threads: `submit`, `cancel`, `sweep` and `deliver` belong to the event loop; worker threads run the jobs. Finished jobs wait in a deque,
and the loop is woken once for all that finish before it looks.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dispatcher.admission import Admission
from dispatcher.errors import EngineFault
from dispatcher.job import Job, deadline_exceeded
from dispatcher.meter import ThreadClocks, WorkerTally, total
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodedDocument, EncodeRequest, Request, Result
from dispatcher.shadow import ShadowCheck
from dispatcher.work_queue import WorkQueue
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.dispatcher")

MIN_WORKERS = 4
"""A few workers even on a small host, so that a large document does not make short ones wait for it."""

CLOSE_S = 2.0


class Dispatcher:
    """Runs jobs on a bounded pool of worker threads."""

    def __init__(self, options: DispatcherOptions, wake: Callable[[Callable[[], None]], Any]) -> None:
        """`wake(callback)` schedules a callback on the event loop from any thread (`loop.call_soon_threadsafe`)."""
        self.admission = Admission(options)
        self.clocks = ThreadClocks()
        self.shadow = ShadowCheck(options.shadow_check, self.clocks)
        self.n_workers = options.cpu_workers or max(MIN_WORKERS, os.cpu_count() or 1)
        self._wake = wake
        self._waking = False
        self._queue = WorkQueue()
        self._done: deque[Job[Any]] = deque()
        self._in_flight: set[Job[Any]] = set()
        self._tallies = [WorkerTally() for _ in range(self.n_workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(tally,), name=f"sidetok-worker-{i}", daemon=True)
            for i, tally in enumerate(self._tallies)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job[Any]) -> None:
        """Queue a job whose bytes were admitted; its slot is released when no thread works on it any more."""
        self._in_flight.add(job)
        self._queue.put(job)

    def cancel(self, job: Job[Any]) -> None:
        """Drop a job: its `on_done` is never called. Queued work leaves at once, running work at its next check."""
        job.settled = True
        self._give_up(job)

    def sweep(self) -> None:
        """Answer every job whose deadline passed, whether it waits or runs. Called periodically."""
        now = time.monotonic_ns()
        for job in [job for job in self._in_flight if job.deadline_ns and now > job.deadline_ns and not job.settled]:
            job.error = error = deadline_exceeded()
            job.answer = self._failed(job, error)
            self._settle(job)
            self._give_up(job)

    def deliver(self) -> None:
        """Hand finished jobs to their `on_done`."""
        self._waking = False
        done = self._done
        while done:
            job = done.popleft()
            self._leave(job)
            if not job.settled:
                self._settle(job)

    def snapshot(self) -> WorkerTally:
        """The sum of what the workers counted; callable from any thread."""
        return total(self._tallies)

    @property
    def n_in_flight(self) -> int:
        """Jobs that wait or run, including abandoned ones that a worker still holds."""
        return len(self._in_flight)

    def close(self) -> None:
        """Stop the workers after what is queued; a document that takes longer than `CLOSE_S` is left behind."""
        self._queue.close()
        until_s = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        self.shadow.close()

    def _give_up(self, job: Job[Any]) -> None:
        job.abandoned = True
        if job.claim():
            self._leave(job)

    def _leave(self, job: Job[Any]) -> None:
        if job in self._in_flight:
            self._in_flight.remove(job)
            job.slot.release()

    @staticmethod
    def _settle(job: Job[Any]) -> None:
        job.settled = True
        job.on_done(job)

    def _work(self, tally: WorkerTally) -> None:
        """A worker's life. Its CPU clock is read between stages only, so waiting in the queue counts for the next job."""
        cpu_ns = time.thread_time_ns()
        queue, done = self._queue, self._done
        gate = queue.join()
        while (job := queue.get(gate)) is not None:
            start_ns = time.monotonic_ns()
            claimed = job.claim()
            if claimed:
                cpu_ns = self._run(job, tally, start_ns, cpu_ns)
                done.append(job)
                if not self._waking:
                    self._waking = True
                    self._wake(self.deliver)
            queue.finished(job, time.monotonic_ns() - start_ns)

    def _run(self, job: Job[Any], tally: WorkerTally, start_ns: int, start_cpu_ns: int) -> int:
        """One job from body to answer; returns the thread's CPU clock at its end."""
        clock = time.thread_time_ns
        tally.queue_of(job.route).observe((start_ns - job.submitted_ns) * 1e-9)
        read_cpu_ns = encoded_cpu_ns = 0
        request: Request | None = None
        result: Result | None = None
        try:
            job.check()
            request = job.read()
            job.model = request.model
            read_cpu_ns = clock()
            result = self._execute(job, request)
            encoded_cpu_ns = clock()
            job.answer = job.write(request, result)
        except BaseException as error:  # native engines raise panics that are no `Exception`
            job.error = error
            job.answer = self._failed(job, self._named(error, job))
        end_cpu_ns = clock()
        row = tally.row(job.model, job.route)
        read_cpu_ns = read_cpu_ns or end_cpu_ns
        encoded_cpu_ns = encoded_cpu_ns or end_cpu_ns
        row.decode_body_cpu_ns += read_cpu_ns - start_cpu_ns
        row.encode_cpu_ns += encoded_cpu_ns - read_cpu_ns
        row.write_answer_cpu_ns += end_cpu_ns - encoded_cpu_ns
        if isinstance(request, EncodeRequest) and result is not None:
            row.n_documents += len(result)
            row.n_bytes += request.n_bytes
            for document in result:
                row.n_tokens += document.n_tokens  # type: ignore[union-attr]
        return end_cpu_ns

    @staticmethod
    def _failed(job: Job[Any], error: SidetokError) -> Any:
        """The answer that tells of an error; None when even that cannot be written."""
        try:
            return job.fail(error)
        except Exception as second:
            log.error("an error could not be answered", extra={"error": type(second).__name__, "where": _where(second)})
            return None

    def _execute(self, job: Job[Any], request: Request) -> Result:
        tokenizer = request.tokenizer
        if not isinstance(request, EncodeRequest):
            return tokenizer.decode(request.sequences, request.skip_special_tokens)
        if len(request.documents) == 1:
            result = tokenizer.encode(request.documents, request.options)
        else:
            result = self._encode_many(job, request)
        if self.shadow.fraction:
            self.shadow.sample(request, result)
        return result

    @staticmethod
    def _encode_many(job: Job[Any], request: EncodeRequest) -> list[EncodedDocument]:
        """One document at a time, so that a client that went away costs at most one more document."""
        result: list[EncodedDocument] = []
        for document in request.documents:
            job.check()
            result += request.tokenizer.encode([document], request.options)
        return result

    @staticmethod
    def _named(error: BaseException, job: Job[Any]) -> SidetokError:
        """Errors that are not ours become `EngineFault`; their text stays out, since it may quote the document."""
        if isinstance(error, SidetokError):
            return error
        log.error("request failed", extra={"model": job.model, "error": type(error).__name__, "where": _where(error)})
        return EngineFault("An internal error occurred; the request was not at fault. See the server's log.")


def _where(error: BaseException) -> str:
    """The innermost frame of a traceback, as file:line; no values."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else "unknown"
