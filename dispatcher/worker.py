"""A worker thread: takes jobs in rounds, and brings each from the bytes of its body to the bytes of its answer.

A round is one long job, or several short ones. Short documents of a round that share tokenizer and options are encoded
in one native call: entering and leaving the interpreter costs more than encoding them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.errors import EngineFault
from dispatcher.job import Job
from dispatcher.meter import Work, WorkerTally
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeRequest, Request, Result
from dispatcher.shadow import ShadowCheck
from dispatcher.work_queue import WorkQueue
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.worker")

Jobs = Sequence[Job[Any]]


class Worker(threading.Thread):
    """Runs until its queue is closed and empty. `deliver(jobs)` hands over the jobs of a round, all finished."""

    def __init__(self, queue: WorkQueue, deliver: Callable[[Jobs], None], shadow: ShadowCheck, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.tally = WorkerTally()
        self._queue = queue
        self._deliver = deliver
        self._shadow = shadow

    def run(self) -> None:
        """The thread. Its CPU clock is read between stages only, so what waiting costs counts for the next round."""
        cpu_ns = time.thread_time_ns()
        queue = self._queue
        gate = queue.join()
        while taken := queue.get(gate):
            jobs = [job for job in taken if job.claim()]
            start_cpu_ns, cpu_ns = cpu_ns, self._round(jobs, time.monotonic_ns(), cpu_ns)
            self._deliver(jobs)
            queue.finished(taken, cpu_ns - start_cpu_ns)

    def _round(self, jobs: Jobs, start_ns: int, cpu_ns: int) -> int:
        """All stages of one round; returns the thread's CPU clock at its end."""
        waited = self.tally.queue_of("cpu")
        requests: list[tuple[Job[Any], Request]] = []
        for job in jobs:
            waited.observe((start_ns - job.submitted_ns) * 1e-9)
            if (request := self._read(job)) is not None:
                requests.append((job, request))
        read_cpu_ns = time.thread_time_ns()
        answered = self._execute(requests)
        encoded_cpu_ns = time.thread_time_ns()
        for job, request, result in answered:
            self._write(job, request, result)
        end_cpu_ns = time.thread_time_ns()
        for row, share in self._shares(jobs):
            row.decode_body_cpu_ns += int((read_cpu_ns - cpu_ns) * share)
            row.encode_cpu_ns += int((encoded_cpu_ns - read_cpu_ns) * share)
            row.write_answer_cpu_ns += int((end_cpu_ns - encoded_cpu_ns) * share)
        return end_cpu_ns

    def _read(self, job: Job[Any]) -> Request | None:
        try:
            job.check()
            request = job.read()
            job.model = request.model
        except BaseException as error:
            self._fail(job, error)
            return None
        return request

    def _execute(self, requests: list[tuple[Job[Any], Request]]) -> list[tuple[Job[Any], Request, Result]]:
        """The results of a round, in order; jobs that failed are missing."""
        if len(requests) > 1 and (together := self._encode_together(requests)) is not None:
            return together
        answered: list[tuple[Job[Any], Request, Result]] = []
        for job, request in requests:
            try:
                answered.append((job, request, self._execute_one(job, request)))
            except BaseException as error:  # native engines raise panics that are no `Exception`
                self._fail(job, error)
        return answered

    @staticmethod
    def _encode_together(requests: list[tuple[Job[Any], Request]]) -> list[tuple[Job[Any], Request, Result]] | None:
        """One native call for the round; None when the requests differ, or one fails (then each goes alone)."""
        first = requests[0][1]
        if not isinstance(first, EncodeRequest):
            return None
        tokenizer, options = first.tokenizer, first.options
        documents: list[str] = []
        for _, request in requests:
            if (
                not isinstance(request, EncodeRequest)
                or request.tokenizer is not tokenizer
                or request.options != options
            ):
                return None
            documents += request.documents
        try:
            results = tokenizer.encode(documents, options)
        except BaseException:
            return None
        answered: list[tuple[Job[Any], Request, Result]] = []
        start = 0
        for job, request in requests:
            end = start + len(request.documents)  # type: ignore[union-attr]
            answered.append((job, request, results[start:end]))
            start = end
        return answered

    @staticmethod
    def _execute_one(job: Job[Any], request: Request) -> Result:
        if isinstance(request, DecodeRequest):
            return request.tokenizer.decode(request.sequences, request.skip_special_tokens)
        if len(request.documents) == 1 or not job.is_long:
            return request.tokenizer.encode(request.documents, request.options)
        # One document at a time, so that a client that went away costs at most one more.
        result: list[EncodedDocument] = []
        for document in request.documents:
            job.check()
            result += request.tokenizer.encode([document], request.options)
        return result

    def _write(self, job: Job[Any], request: Request, result: Result) -> None:
        try:
            job.answer = job.write(request, result)
        except BaseException as error:
            self._fail(job, error)
            return
        if isinstance(request, EncodeRequest):
            row = self.tally.row(job.model, job.route)
            row.n_documents += len(result)
            row.n_bytes += request.n_bytes
            for document in result:
                row.n_tokens += document.n_tokens  # type: ignore[union-attr]
            if self._shadow.fraction:
                self._shadow.sample(request, result)  # type: ignore[arg-type]

    def _shares(self, jobs: Jobs) -> list[tuple[Work, float]]:
        """The rows that the CPU time of a round belongs to: by model, in proportion to its jobs."""
        models: dict[tuple[str, str], int] = {}
        for job in jobs:
            key = (job.model, job.route)
            models[key] = models.get(key, 0) + 1
        return [(self.tally.row(*key), n / len(jobs)) for key, n in models.items()]

    @staticmethod
    def _fail(job: Job[Any], error: BaseException) -> None:
        job.error = named(error, job)
        job.answer = failed(job, job.error)
        # Its frames and its cause hold the body, and the job would hold them until the garbage collector comes by.
        job.error.__traceback__ = job.error.__cause__ = job.error.__context__ = None


def failed(job: Job[Any], error: SidetokError) -> Any:
    """The answer that tells of an error; None when even that cannot be written."""
    try:
        return job.fail(error)
    except BaseException as second:
        log.error("an error could not be answered", extra={"error": type(second).__name__, "where": where(second)})
        return None


def named(error: BaseException, job: Job[Any]) -> SidetokError:
    """Errors that are not ours become `EngineFault`; their text stays out, since it may quote the document."""
    if isinstance(error, SidetokError):
        return error
    log.error("request failed", extra={"model": job.model, "error": type(error).__name__, "where": where(error)})
    return EngineFault("An internal error occurred; the request was not at fault. See the server's log.")


def where(error: BaseException) -> str:
    """The innermost frame of a traceback, as file:line; no values."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else "unknown"
