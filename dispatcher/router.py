"""Both routes joined: which one answers, and how the documents of the GPU route come back.

    worker: read ─► send ─┬─ CPU: left for the worker
                          └─ GPU: Bundle ─► group ─► route's thread: finish, write ─► delivered
                                                 ╰─► documents that the GPU did not answer ─► queue ─► a worker ─► ...

    worker: what came back ─┬─ rewrite documents that are not in normal form ─► group ─► ... , once
                            └─ encode what is missing

A bundle is what the jobs of one round have in common: model, tokenizer, options, route. Its group comes back once, with
results or without, and each of its jobs goes on from there by itself: to its client, or as a CPU job that encodes what
is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeGuard

from dispatcher.bundle import Bundle, SecondTry
from dispatcher.chooser import RouteChooser
from dispatcher.costs import content_kind
from dispatcher.errors import Cancelled, DispatcherClosed, InvalidOption, NoGpuRoute
from dispatcher.failures import fail
from dispatcher.finisher import Finisher
from dispatcher.gpu.group import CANCELLED, EXPIRED, Group
from dispatcher.gpu_gate import GpuGate
from dispatcher.gpu_set import GpuSet
from dispatcher.job import Job, Partial, deadline_exceeded
from dispatcher.meter import WorkerTally
from dispatcher.policy import ADAPTIVE, CPU, GPU, NO_GPU, Choice, CpuLoad, is_short
from dispatcher.request import EncodedDocument, EncodeRequest, Request, Route
from dispatcher.shadow import ShadowCheck
from dispatcher.ways import Ways
from dispatcher.work_queue import WorkQueue

Read = tuple[Job[Any], Request]
_NOTHING = nullcontext()
_NO_LOAD = CpuLoad(1, 1)
"""Where the queue of the workers decides nothing."""
WRITE_BYTES = 32_768
"""Answers to longer texts are written by a worker, unless a GPU listed the ids: its thread has replays to launch."""


class Router:
    """One for all workers. Every method may be called from any thread."""

    def __init__(
        self,
        policy: str,
        gpus: GpuSet,
        queue: WorkQueue,
        collect: Callable[[Sequence[Job[Any]]], None],
        shadow: ShadowCheck,
        n_workers: int,
    ) -> None:
        """`collect` takes finished jobs, from any thread."""
        self.gpus = gpus
        self.chooser = RouteChooser(gpus.costs, policy, Ways(lambda: time.process_time_ns() + gpus.engine_cpu_ns))
        self._queue = queue
        self._collect = collect
        self._shadow = shadow
        self._n_workers = n_workers
        self._gates: dict[int, GpuGate] = {}
        self._own = threading.local()
        self._noted, self._noted_lock = WorkerTally(), threading.Lock()
        self.tallies: list[WorkerTally] = [self._noted]
        """Of each thread that results came back on, and of what was noted there and is counted by others."""

    def send(self, requests: list[Read]) -> tuple[list[Read], list[Job[Any]]]:
        """Hand what takes the GPU route over to it.

        What is left for the calling worker: requests, and jobs that ended with an error.
        """
        left: list[Read] = []
        ended: list[Job[Any]] = []
        bundles: dict[Any, Bundle] = {}
        if not self.gpus.any and not any([request.route == GPU for _, request in requests]):
            return requests, ended
        if self._stay_together(requests):
            return requests, ended
        for job, request in requests:
            try:
                if job.partial is not None and job.partial.doubtful and self._send_again(job, job.partial):
                    continue
                # What else comes back from the GPU route stays with the worker.
                finisher = None if job.partial is not None else self._finisher(request)
            except BaseException as error:  # native code raises panics that are no `Exception`
                fail(job, error)
                ended.append(job)
                continue
            if finisher is None:
                left.append((job, request))
                continue
            assert isinstance(request, EncodeRequest)
            if len(requests) == 1 and self._stays(job, request):
                return requests, ended
            key: Any = job if job.is_long else (request.model, id(request.tokenizer), request.options, request.route)
            if not job.is_long and any(gate.is_full for gate in self._gates.values()):
                key = (*key, job.flow)
            bundle = bundles.get(key)
            if bundle is None:
                bundle = bundles[key] = Bundle(self, finisher, request)
            bundle.jobs.append(job)
            bundle.requests.append(request)
        for bundle in bundles.values():
            try:
                self._send_bundle(bundle, left, ended)
            except BaseException as error:
                for job in bundle.jobs:
                    fail(job, error)
                ended += bundle.jobs
        return left, ended

    def choose(
        self,
        key: str,
        kind: str,
        n_bytes: int,
        n_documents: int,
        route: Route = "auto",
        deadline_ns: int = 0,
        on_worker: bool = False,
    ) -> Choice:
        """The route of documents of one model (its digest) and kind. `on_worker`: who asks would encode them."""
        loads = self.gpus.loads(key)
        if self._gates:
            loads = [
                gate.with_waiting(load) if (gate := self._gates.get(gpu)) else load for gpu, load in enumerate(loads)
            ]
        chooser = self.chooser
        policy = chooser.policy if route == "auto" else route
        now_ns = time.monotonic_ns()
        if policy != ADAPTIVE:
            return chooser.choose(key, kind, n_bytes, n_documents, _NO_LOAD, loads, now_ns, policy=policy)
        if loads and (choice := chooser.again(key, kind, n_bytes, n_documents, loads, now_ns)) is not None:
            return choice
        queue = self._queue
        start_ns = 0.0 if on_worker else queue.wake_ns
        # A worker that asks is one that would begin at once.
        n_idle = queue.n_idle + (on_worker and self._n_workers > 1)
        cpu = CpuLoad(self._n_workers, n_idle, queue.waiting_bytes, queue.n_waiting, start_ns, on_worker)
        return chooser.choose(key, kind, n_bytes, n_documents, cpu, loads, now_ns, deadline_ns)

    def observing(self, requests: list[Read]) -> AbstractContextManager[None]:
        """Encode requests that share a tokenizer are encoded by the calling thread while the context lasts."""
        return self._observed(requests) if self.gpus.any else _NOTHING

    @contextmanager
    def _observed(self, requests: list[Read]) -> Iterator[None]:
        start_ns, start_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        yield
        now_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        encoded = [request for _, request in requests if isinstance(request, EncodeRequest)]
        n_documents = sum([len(request.documents) for request in encoded])
        if not n_documents or not encoded[0].options.ids_only or requests[0][0].partial is not None:
            return
        first = next(request.sample for request in encoded if request.documents)
        self.gpus.costs.observe_cpu_route(
            encoded[0].tokenizer.spec.digest,
            content_kind(first),
            sum([request.n_bytes for request in encoded]),
            n_documents,
            now_ns - start_ns,
            cpu_ns - start_cpu_ns,
            now_ns,
        )

    def tally(self) -> WorkerTally:
        """The calling thread's own."""
        tally: WorkerTally | None = getattr(self._own, "tally", None)
        if tally is None:
            tally = self._own.tally = WorkerTally()
            self.tallies.append(tally)
        return tally

    def count_group(self, model: str, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """Count documents that a GPU answered, on the calling thread."""
        tally: WorkerTally | None = getattr(self._own, "tally", None)
        work = None if tally is None else tally.work.get((model, GPU))  # type: ignore[call-overload]
        if work is None:
            work = self.tally().row(model, GPU)
        work.n_documents += n_documents
        work.n_bytes += n_bytes
        work.n_tokens += n_tokens

    def count_noted(self, model: str, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """The same from any thread, of which there may be ever more."""
        with self._noted_lock:
            self._noted.row(model, GPU).count(n_documents, n_bytes, n_tokens)

    def finish(self, bundle: Bundle | SecondTry, group: Group) -> None:
        """A group has results: write answers, and send back to the queue what is not complete."""
        start_cpu_ns = time.thread_time_ns()
        tally = self.tally()
        finished: list[Job[Any]] = []
        back: list[Job[Any]] = []
        first = 0
        for job, request in zip(bundle.jobs, bundle.requests, strict=True):
            last = first + len(request.documents)
            try:
                self._go_on(job, request, bundle, group, (first, last), back)
            except BaseException as error:
                fail(job, error)
            if not back or back[-1] is not job:
                finished.append(job)
                if job.error is None:
                    tally.row(request.model, GPU).count(len(request.documents), request.n_bytes, job.n_tokens)
            first = last
        model = bundle.requests[0].model
        tally.row(model, GPU).write_answer_cpu_ns += time.thread_time_ns() - start_cpu_ns
        self._return(finished, back)
        if group.replayed_ns and not back:
            now_ns = time.monotonic_ns()
            beside_ns = group.prepared_ns + now_ns - group.replayed_ns
            self.gpus.costs.observe_gpu_answer(group.model_key, group.kind, group.n_bytes // last, beside_ns, now_ns)

    def give_up(self, bundle: Bundle | SecondTry, reason: str) -> None:
        """A group comes back without results."""
        finished: list[Job[Any]] = []
        back: list[Job[Any]] = []
        for job, request in zip(bundle.jobs, bundle.requests, strict=True):
            job.group = None
            if reason in (CANCELLED, EXPIRED):
                fail(job, Cancelled("The client went away.") if reason == CANCELLED else deadline_exceeded())
                finished.append(job)
            else:
                if job.partial is None:
                    job.partial = Partial(request, [None] * len(request.documents))
                if not any(job.partial.results):
                    job.route = CPU
                back.append(job)
        self._return(finished, back)

    def _finisher(self, request: Request) -> Finisher | None:
        """None for what only the CPU route can answer, or may. Raises when the request insists on the other one."""
        if not isinstance(request, EncodeRequest) or request.route == CPU or not request.documents:
            return None
        finisher = request.tokenizer.finisher(request.options)
        if finisher is None and request.route == GPU:
            raise InvalidOption("The GPU route gives ids and counts only; ask for the rest without `route`.")
        return finisher

    def _stay_together(self, requests: list[Read]) -> bool:
        """Whether the calling worker keeps a round, because short work takes the CPU route now."""
        chooser = self.chooser
        if chooser.policy != ADAPTIVE or chooser.ways.spell.way != CPU:
            return False
        short = [request for job, request in requests if job.partial is None and _may_stay(request, requests[0][1])]
        if not short or len(short) < len(requests):
            return False
        n_bytes = sum([request.n_bytes for request in short])
        n_documents = sum([len(request.documents) for request in short])
        loads = self.gpus.loads(short[0].tokenizer.spec.digest)
        if not chooser.together_on_cpu(n_bytes, n_documents, loads, time.monotonic_ns()):
            return False
        for job, _ in requests:
            job.spell = chooser.ways.spell
        return True

    def _stays(self, job: Job[Any], request: EncodeRequest) -> bool:
        """Whether the calling worker keeps a request: without all that a choice takes, where nothing has changed."""
        if request.route != "auto" or self.chooser.policy != ADAPTIVE or not request.n_bytes:
            return False
        documents, chooser = request.documents, self.chooser
        key, kind = request.tokenizer.spec.digest, content_kind(request.sample)
        n_waiting, now_ns = self._queue.n_waiting, time.monotonic_ns()
        if not chooser.stays(key, kind, request.n_bytes, len(documents), n_waiting, now_ns):
            return False
        job.spell = chooser.ways.spell if is_short(request.n_bytes, len(documents)) else None
        return True

    def _send_bundle(self, bundle: Bundle, left: list[Read], ended: list[Job[Any]]) -> None:
        first = bundle.requests[0]
        kind = content_kind(first.sample)
        n_documents = sum([len(request.documents) for request in bundle.requests])
        n_bytes = sum([request.n_bytes for request in bundle.requests])
        deadline_ns = bundle.jobs[0].deadline_ns
        key = first.tokenizer.spec.digest
        asked_ns = time.monotonic_ns()
        choice = self.choose(key, kind, n_bytes, n_documents, first.route, deadline_ns, on_worker=True)
        if (spell := self.chooser.spell_of(choice, n_bytes, n_documents)) is not None:
            for job in bundle.jobs:
                job.spell = spell
        if choice.route == GPU:
            try:
                group = bundle.group(kind)
                group.prepared_ns = time.monotonic_ns() - asked_ns
            except UnicodeEncodeError:
                # The CPU route says which document it is, and answers the others.
                left += zip(bundle.jobs, bundle.requests, strict=True)
                return
            self._submit(choice.gpu, group, bundle.jobs[0].flow)
        elif first.route == GPU and choice.reason == NO_GPU:
            why = self.gpus.why_not(first.tokenizer.spec.digest)
            for job in bundle.jobs:
                fail(job, NoGpuRoute(f"No GPU serves the model `{first.model}` now: {why}."))
            ended += bundle.jobs
        else:
            left += zip(bundle.jobs, bundle.requests, strict=True)

    def _send_again(self, job: Job[Any], partial: Partial) -> bool:
        """Rewrite documents that are not in normal form, and hand them over again; false when that is not better."""
        request, key = partial.request, partial.request.tokenizer.spec.digest
        finisher, rewriter = request.tokenizer.finisher(request.options), self.gpus.rewriter(key)
        if finisher is None or rewriter is None:
            return False
        again = SecondTry(self, finisher, job, partial, rewriter)
        partial.doubtful = ()
        if not again.texts:
            return False
        kind, route = content_kind(request.sample), GPU if request.route == GPU else "auto"
        choice = self.choose(key, kind, again.n_bytes, len(again.texts), route, job.deadline_ns, on_worker=True)
        if choice.route != GPU:
            return False
        self._submit(choice.gpu, again.group(), job.flow)
        return True

    def _submit(self, gpu: int, group: Group, flow: str) -> None:
        """To the route, as soon as it is the turn of whoever wants it."""
        gate = self._gates.get(gpu)
        if gate is None:
            # Of two threads that make one, both get the first.
            gate = self._gates.setdefault(gpu, GpuGate())
        gate.submit(self.gpus.route(gpu), group, flow)

    def _go_on(
        self,
        job: Job[Any],
        request: EncodeRequest,
        bundle: Bundle | SecondTry,
        group: Group,
        documents: tuple[int, int],
        back: list[Job[Any]],
    ) -> None:
        """Write the answer here, or send the job back to a worker that does what is left."""
        job.group = None
        results = bundle.results(group, *documents, reads_ids=request.reads_ids or self._shadow.fraction > 0)
        job.check()
        is_quick = job.slot.n_bytes <= WRITE_BYTES or request.is_listed(results)
        if None in results or request.is_slow_to_write or not is_quick:
            if not any(results):
                job.route = CPU
            again = bundle.doubtful(group, *documents) if group.needs_cpu else ()
            job.partial = Partial(request, results, again)
            back.append(job)
            return
        complete: list[EncodedDocument] = results  # type: ignore[assignment]
        job.answer = job.write(request, complete)
        job.n_tokens = sum([document.n_tokens for document in complete])
        if self._shadow.fraction:
            self._shadow.sample(request, complete)

    def _return(self, finished: list[Job[Any]], back: list[Job[Any]]) -> None:
        if back and not self._queue.put(back):
            for job in back:
                fail(job, DispatcherClosed())
            self._collect(back)
        if finished:
            self._collect(finished)


def _may_stay(request: Request, first: Request) -> TypeGuard[EncodeRequest]:
    """Whether it is short work that both routes could do, of the same tokenizer as the first of its round."""
    if not isinstance(request, EncodeRequest) or request.tokenizer is not first.tokenizer or request.route != "auto":
        return False
    return bool(request.documents) and request.options.ids_only and is_short(request.n_bytes, len(request.documents))
