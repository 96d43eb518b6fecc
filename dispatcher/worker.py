"""A worker thread: takes jobs in rounds, and brings each from the bytes of its body to the bytes of its answer.

A round is one long job, or several short ones. Short documents of a round that share tokenizer and options are encoded
in one native call: entering and leaving the interpreter costs more than encoding them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dispatcher.bundle import merged
from dispatcher.failures import fail
from dispatcher.halves import Halves
from dispatcher.job import Job
from dispatcher.meter import Work, WorkerTally
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeRequest, Request, Result
from dispatcher.router import Read, Router
from dispatcher.shadow import ShadowCheck
from dispatcher.work_queue import WorkQueue

Jobs = Sequence[Job[Any]]
PART_CHARS = 32_768
"""A long batch is encoded so much at a time."""


class Worker(threading.Thread):
    """Runs until its queue is closed and empty. `deliver(jobs)` hands over the jobs of a round that ended here."""

    def __init__(
        self,
        queue: WorkQueue,
        deliver: Callable[[Jobs], None],
        shadow: ShadowCheck,
        name: str,
        router: Router,
        halves: Halves | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.tally = WorkerTally()
        self._queue = queue
        self._deliver = deliver
        self._shadow = shadow
        self._router = router
        self._halves = halves
        self._helped_ns = 0
        """CPU time of another thread for this round."""
        self._is_at_long = False
        """The queue takes this worker to be at a long job."""

    def run(self) -> None:
        """The thread. Its CPU clock is read between stages only, so what waiting costs counts for the next round."""
        cpu_ns = time.thread_time_ns()
        queue = self._queue
        bell = queue.join()
        while taken := queue.get(bell):
            # One that comes back from the GPU route was claimed before.
            jobs = [job for job in taken if job.partial is not None or job.claim()]
            start_cpu_ns, self._is_at_long = cpu_ns, taken[0].is_long
            ended, cpu_ns = self._round(jobs, time.monotonic_ns(), cpu_ns)
            self._deliver(ended)
            queue.finished(taken, cpu_ns - start_cpu_ns + self._helped_ns, self._is_at_long)
            self._helped_ns = 0
            # A worker may sleep for hours, and must not hold texts and a tokenizer that was removed meanwhile.
            taken, jobs, ended = [], [], ()
        bell.close()

    def _round(self, jobs: Jobs, start_ns: int, cpu_ns: int) -> tuple[Jobs, int]:
        """All stages of one round; the jobs that ended here, and the thread's CPU clock at the end."""
        requests: list[Read] = []
        ended: list[Job[Any]] = []
        for job in jobs:
            if (request := self._read(job)) is not None:
                requests.append((job, request))
            else:
                ended.append(job)
        read_cpu_ns = time.thread_time_ns()
        here, refused = self._router.send(requests)
        ended += refused
        sent_cpu_ns = read_cpu_ns if here is requests else time.thread_time_ns()
        answered = self._execute(here)
        encoded_cpu_ns = time.thread_time_ns()
        for job, request, result in answered:
            self._write(job, request, result, alone=len(jobs) == 1)
        end_cpu_ns = time.thread_time_ns()
        stayed = [job for job, _ in here]
        ended += stayed
        for job in jobs:
            if job.partial is None:
                self.tally.queue_of(job.route).observe((start_ns - job.submitted_ns) * 1e-9)
        shares = self._shares(jobs)
        for row, share in shares:
            row.decode_body_cpu_ns += int((read_cpu_ns - cpu_ns) * share)
            row.submit_cpu_ns += int((sent_cpu_ns - read_cpu_ns) * share)
        for row, share in self._shares(stayed) if 0 < len(stayed) < len(jobs) else shares:
            row.encode_cpu_ns += int((encoded_cpu_ns - sent_cpu_ns + self._helped_ns) * share)
            row.write_answer_cpu_ns += int((end_cpu_ns - encoded_cpu_ns) * share)
        return ended, end_cpu_ns

    def _read(self, job: Job[Any]) -> Request | None:
        try:
            job.check()
            if job.partial is not None:
                return job.partial.request
            request = job.read()
            job.model = request.model
        except BaseException as error:
            fail(job, error)
            return None
        return request

    def _execute(self, requests: list[Read]) -> list[tuple[Job[Any], Request, Result]]:
        """The results of a round, in order; jobs that failed are missing."""
        if len(requests) > 1 and (together := self._encode_together(requests)) is not None:
            return together
        answered: list[tuple[Job[Any], Request, Result]] = []
        for job, request in requests:
            try:
                with self._router.observing([(job, request)]):
                    result = self._execute_one(job, request)
                answered.append((job, request, result))
            except BaseException as error:  # native engines raise panics that are no `Exception`
                fail(job, error)
        return answered

    def _encode_together(
        self, requests: list[tuple[Job[Any], Request]]
    ) -> list[tuple[Job[Any], Request, Result]] | None:
        """One native call for the round; None when the requests differ, or one fails (then each goes alone)."""
        first = requests[0][1]
        if not isinstance(first, EncodeRequest):
            return None
        tokenizer, options = first.tokenizer, first.options
        documents: list[str] = []
        for job, request in requests:
            if (
                job.partial is not None
                or not isinstance(request, EncodeRequest)
                or request.tokenizer is not tokenizer
                or request.options != options
                or not isinstance(request.documents, list)
            ):
                return None
            documents += request.documents
        try:
            with self._router.observing(requests):
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

    def _execute_one(self, job: Job[Any], request: Request) -> Result:
        if isinstance(request, DecodeRequest):
            return request.tokenizer.decode(request.sequences, request.skip_special_tokens)
        if job.partial is not None:
            return merged(job.partial, request.tokenizer.encode)
        # Beside GPUs the router learns what the CPU route takes, which must not depend on who had help.
        if self._halves is not None and not self._router.gpus.any and job.is_long and len(request.documents) == 1:
            result, self._helped_ns = self._halves.encode(request.tokenizer, request.documents[0], request.options)
            return [result]
        if len(request.documents) == 1 or not job.is_long:
            return request.tokenizer.encode(request.documents, request.options)
        # A little at a time, so that a client that went away costs little more. Not one document at a time: each call
        # gives the interpreter away and waits for it, and that is what bounds the rate of many workers.
        results: list[EncodedDocument] = []
        for documents in _parts(request.documents):
            job.check()
            results += request.tokenizer.encode(documents, request.options)
        return results

    def _write(self, job: Job[Any], request: Request, result: Result, alone: bool) -> None:
        try:
            job.answer = job.write(request, result)
        except BaseException as error:
            fail(job, error)
            return
        if isinstance(request, EncodeRequest):
            encoded: list[EncodedDocument] = result  # type: ignore[assignment]
            n_tokens = sum([document.n_tokens for document in encoded])
            self.tally.row(job.model, job.route).count(len(encoded), request.n_bytes, n_tokens)
            if self._shadow.fraction:
                self._shadow.sample(request, encoded)
        if alone and job.send is not None:
            if self._is_at_long:
                # The client may be back with its next request before this round is over: no other worker is needed.
                self._queue.put_down(job)
                self._is_at_long = False
            job.send(job)

    def _shares(self, jobs: Jobs) -> list[tuple[Work, float]]:
        """The rows that the CPU time of a round belongs to: by model, in proportion to its jobs."""
        if len(jobs) == 1:
            return [(self.tally.row(jobs[0].model, jobs[0].route), 1.0)]
        models: dict[tuple[str, str], int] = {}
        for job in jobs:
            key = (job.model, job.route)
            models[key] = models.get(key, 0) + 1
        return [(self.tally.row(*key), n / len(jobs)) for key, n in models.items()]


def _parts(documents: Sequence[str]) -> Iterator[list[str]]:
    """Documents in order, together up to `PART_CHARS` characters, one at least."""
    part: list[str] = []
    n_chars = 0
    for document in documents:
        if part and n_chars + len(document) > PART_CHARS:
            yield part
            part, n_chars = [], 0
        part.append(document)
        n_chars += len(document)
    if part:
        yield part
