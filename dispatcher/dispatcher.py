"""The dispatcher: admitted jobs in, answers out, on the CPU route or on that of the GPUs.

Threads: `submit`, `cancel`, `sweep` and `deliver` belong to the event loop; workers run the jobs, or hand them over to
the GPU route. Finished jobs wait in a deque, and the loop is woken once for all that finish before it looks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.admission import Admission
from dispatcher.cpus import usable_cpus
from dispatcher.errors import DispatcherClosed
from dispatcher.failures import fail, failed, where
from dispatcher.gpu.group import OnDone
from dispatcher.gpu.reserved_text import ReservedText, ordinary_text
from dispatcher.gpu.short_way import ShortCall
from dispatcher.gpu_set import GpuSet, NoGpus
from dispatcher.group_call import PLAIN, GroupCall, Text
from dispatcher.halves import Halves
from dispatcher.job import Job, deadline_exceeded
from dispatcher.meter import ThreadClocks, WorkerTally, total
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeOptions, Route
from dispatcher.router import Router
from dispatcher.shadow import ShadowCheck
from dispatcher.tokenizer import Tokenizer
from dispatcher.work_queue import WorkQueue
from dispatcher.worker import Jobs, Worker
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.dispatcher")

MIN_WORKERS = 4
"""A few workers even on a small host, so that a large document does not make short ones wait for it."""
CLOSE_S = 0.25


Schedule = Callable[[Callable[[], None]], Any]


class Dispatcher:
    """Runs jobs on a bounded pool of worker threads, and on GPUs where there are some."""

    def __init__(
        self,
        options: DispatcherOptions,
        wake: Schedule,
        soon: Schedule | None = None,
        gpus: GpuSet | None = None,
        clocks: ThreadClocks | None = None,
    ) -> None:
        """`wake` schedules a callback on the event loop from any thread (`loop.call_soon_threadsafe`).

        `soon` does so from the loop itself (`loop.call_soon`): jobs submitted in one turn of the loop are queued at the
        end of it, so that no worker asks for the interpreter while the loop still reads. None queues each at once.
        Without `gpus` everything takes the CPU route.
        """
        n_cpus = usable_cpus()
        self.n_workers = options.cpu_workers or max(MIN_WORKERS, n_cpus)
        self.admission = Admission(options, self.n_workers)
        self.clocks = clocks or ThreadClocks()
        self.shadow = ShadowCheck(options.shadow_check, self.clocks)
        self._wake = wake
        self._soon = soon
        self._submitted: list[Job[Any]] = []
        self._waking = False
        self._woken_ns = 0
        self._home = threading.get_ident()
        self._queue = WorkQueue(n_cpus)
        self._done: deque[Job[Any]] = deque()
        self._answered: deque[Job[Any]] = deque()
        """Jobs that workers answered, whose `on_done` was not called yet: nobody wakes the loop for them."""
        self._in_flight: set[Job[Any]] = set()
        self._router = Router(options.policy, gpus or NoGpus(), self._queue, self._collect, self.shadow, self.n_workers)
        self._halves = Halves(self._queue, self.n_workers, n_cpus)
        self._workers = [
            Worker(self._queue, self._collect, self.shadow, f"sidetok-worker-{i}", self._router, self._halves)
            for i in range(self.n_workers)
        ]
        for worker in self._workers:
            worker.start()

    def submit(self, job: Job[Any]) -> None:
        """Queue a job; its slot is released when no thread works on it any more."""
        self._in_flight.add(job)
        self.admission.backlog.enter(job.slot.n_bytes)
        if self._soon is None:
            self._put([job])
            return
        self._submitted.append(job)
        if len(self._submitted) == 1:
            self._soon(self._queue_submitted)

    def encode_group(
        self,
        tokenizer: Tokenizer,
        documents: Sequence[Text],
        on_done: OnDone,
        options: EncodeOptions = PLAIN,
        *,
        model: str = "",
        route: Route = "auto",
        deadline_ns: int = 0,
    ) -> GroupCall | ShortCall:
        """Encode documents without an event loop; from any thread, never waits.

        `documents` are UTF-8 or text, of one kind of content. `on_done(result, error)` is called once, on a thread of
        the dispatcher. `model` is the label in metrics, `deadline_ns` on the clock of `time.monotonic_ns`. Raises
        `InvalidOption`, `NoGpuRoute`, `DispatcherClosed`, and `UnicodeEncodeError` for a lone surrogate.
        """
        if len(documents) == 1 and isinstance(text := documents[0], ReservedText) and not deadline_ns:
            lease = text.lease
            if lease is not None:
                place, short = lease.place, None
                if place is not None:
                    short = place.take(text, lease, on_done, tokenizer, options, model, route)
                if short is None:
                    short = lease.way.take(text, lease, on_done, (tokenizer, options, model, route))
                if short is not None:
                    return short
        call = GroupCall(tokenizer, documents, on_done, options, model, self._queue, self._router)
        call.start(route, deadline_ns)
        return call

    def reserve(self, tokenizer: Tokenizer, n_bytes: int) -> ReservedText:
        """Memory for a text of up to `n_bytes`, where a GPU reads it if it is long and there is room; from any thread.

        Write UTF-8 to it and pass it, or its beginning, to `encode_group` as the only document: then the text is not
        copied. Nothing else may be written to it afterwards. The memory is given back when nothing refers to it.
        """
        text = self._router.gpus.reserve(tokenizer.spec.digest, n_bytes)
        return ordinary_text(n_bytes) if text is None else text

    def cancel(self, job: Job[Any]) -> None:
        """Drop a job: its `on_done` is never called. Queued work leaves at once, running work at its next check."""
        job.settled = True
        self._give_up(job)

    def sweep(self) -> None:
        """Answer every job whose deadline passed, whether it waits or runs. Called periodically."""
        if self.has_news:
            self.deliver()
        self.admission.observe()
        now = time.monotonic_ns()
        for job in [job for job in self._in_flight if job.deadline_ns and now > job.deadline_ns and not job.settled]:
            if job.claim_answer():
                error = deadline_exceeded()
                self._settle(job, failed(job, error), error)
                self._give_up(job)
        self._queue.rescue()

    def deliver(self) -> None:
        """Hand finished jobs to their `on_done`."""
        self._waking = False
        while self._answered:
            job = self._answered.popleft()
            # Its worker is about to put it down, but the client may be here with its next one, and asks for the slot.
            self._leave(job)
            if not job.settled:
                self._settle(job, job.answer, None)
                if job.spell is not None:
                    job.spell.answered(job.submitted_ns, job.answered_ns)
        # A request waits as long for the loop, before it is a job.
        late_ns = time.monotonic_ns() - self._woken_ns
        done = self._done
        while done:
            job = done.popleft()
            self._leave(job)
            if not job.settled:
                self._settle(job, job.answer, job.error)
                if job.spell is not None and job.error is None:
                    job.spell.answered(job.submitted_ns, time.monotonic_ns() + late_ns)

    def begin_answer(self, job: Job[Any]) -> bool:
        """Called by a worker that is about to hand the answer to the client: whether it may."""
        if not job.claim_answer():
            return False
        job.answered_ns = time.monotonic_ns()
        self._answered.append(job)
        return True

    @property
    def has_news(self) -> bool:
        """Whether jobs ended for which nobody woke the loop."""
        return bool(self._answered) or (bool(self._done) and not self._waking)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, or one job that was answered."""
        n_in_flight = len(self._in_flight)
        return not n_in_flight or (n_in_flight == 1 and next(iter(self._in_flight)).answered_ns > 0)

    def snapshot(self) -> WorkerTally:
        """The sum of what the workers and the routes of GPUs counted; callable from any thread."""
        self._router.gpus.settle()
        return total([*(worker.tally for worker in self._workers), *self._router.tallies])

    def written_by_gpus_ns(self) -> int:
        """CPU time of answers that were written on the threads of GPU routes; it is in the snapshot, too."""
        return sum(work.write_answer_cpu_ns for work in total(self._router.tallies).work.values())

    def decisions(self) -> dict[tuple[str, str], int]:
        """Choices between the routes, by route and reason."""
        self._router.gpus.settle()
        return self._router.chooser.snapshot()

    @property
    def n_in_flight(self) -> int:
        """Jobs that wait or run, including abandoned ones that a worker still holds."""
        return len(self._in_flight)

    @property
    def n_huge_finished(self) -> int:
        """Huge jobs that workers are done with; see `dispatcher.work_queue`."""
        return self._queue.n_huge_finished

    def close(self) -> None:
        """Stop the workers after what is queued, and take no more (`DispatcherClosed`).

        What takes longer than `CLOSE_S` is left behind: threads that end with the process go on with it.
        """
        self._queue.close()
        self._halves.close()
        until_s = time.monotonic() + CLOSE_S
        for worker in self._workers:
            worker.join(max(0.0, until_s - time.monotonic()))
        self.shadow.close()

    def _queue_submitted(self) -> None:
        jobs, self._submitted = self._submitted, []
        self._put(jobs)

    def _put(self, jobs: list[Job[Any]]) -> None:
        if not self._queue.put(jobs):
            for job in jobs:
                fail(job, DispatcherClosed())
            self._collect(jobs)

    def _collect(self, jobs: Jobs) -> None:
        """Called by a worker at the end of a round, and by whatever thread results of a GPU come on."""
        if direct := [job for job in jobs if job.is_direct]:
            for job in direct:
                job.on_done(job.answer, job.error)
            jobs = [job for job in jobs if not job.is_direct]
        self._done.extend(jobs)
        if len(jobs) == 1 and jobs[0].answered_ns:
            return
        if jobs and not self._waking:
            self._waking = True
            self._woken_ns = time.monotonic_ns()
            if self._soon is not None and threading.get_ident() == self._home:
                # From a GPU route that the loop drives.
                self._soon(self.deliver)
            else:
                self._wake(self.deliver)

    def _give_up(self, job: Job[Any]) -> None:
        job.abandoned = True
        if (group := job.group) is not None:
            group.cancelled = True
        if job.claim():
            job.forget()
            self._leave(job, answered=False)

    def _leave(self, job: Job[Any], answered: bool = True) -> None:
        if job in self._in_flight:
            self._in_flight.remove(job)
            self.admission.backlog.leave(job.slot.n_bytes, answered)
            job.slot.release()

    @staticmethod
    def _settle(job: Job[Any], answer: Any, error: SidetokError | None) -> None:
        job.settled = True
        try:
            job.on_done(answer, error)
        except Exception as failure:  # one request must not keep the others from their answers
            log.error(
                "an answer could not be handed over", extra={"error": type(failure).__name__, "where": where(failure)}
            )
