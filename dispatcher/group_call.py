"""Groups of documents encoded in process: one call in, one callback out, on whichever route is faster.

    dispatcher.encode_group(tokenizer, documents, on_done)

No event loop and no admission take part: whoever calls bounds what it has in flight.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from dispatcher.admission import Uncounted
from dispatcher.bundle import doubtful, finished_ids
from dispatcher.costs import content_kind
from dispatcher.errors import Cancelled, DispatcherClosed, EngineFault, InvalidOption, InvalidText, NoGpuRoute
from dispatcher.failures import where
from dispatcher.finisher import Finisher
from dispatcher.gpu.group import CANCELLED, EXPIRED, EncodedGroup, Group, Ids, OnDone
from dispatcher.gpu.reserved_text import Lease, ReservedText, bytes_of, lease_of
from dispatcher.gpu.short_way import Finding
from dispatcher.gpu_gate import Submits
from dispatcher.job import Job, Partial, deadline_exceeded
from dispatcher.policy import CPU, GPU, NO_GPU, POLICY
from dispatcher.request import EncodedDocument, EncodeOptions, EncodeRequest, Request, Result, Route
from dispatcher.router import Router
from dispatcher.spell import Spell
from dispatcher.tokenizer import Tokenizer
from dispatcher.work_queue import WorkQueue
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.group_call")

Text = bytes | memoryview | str | ReservedText
PLAIN = EncodeOptions(add_special_tokens=False)


class GroupCall:
    """One call on its way. `on_done` is called once, with results or with an error, on a thread of the dispatcher."""

    __slots__ = (
        "_documents",
        "_finisher",
        "_group",
        "_is_cancelled",
        "_job",
        "_model",
        "_on_done",
        "_opens",
        "_options",
        "_queue",
        "_router",
        "_since_ns",
        "_spell",
        "_tokenizer",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        documents: Sequence[Text],
        on_done: OnDone,
        options: EncodeOptions,
        model: str,
        queue: WorkQueue,
        router: Router,
    ) -> None:
        self._tokenizer = tokenizer
        self._documents = documents
        self._on_done = on_done
        self._options = options
        self._model = model
        self._queue = queue
        self._router = router
        self._finisher: Finisher | None = None
        self._group: Group | None = None
        self._job: Job[Any] | None = None
        self._is_cancelled = False
        self._spell: Spell | None = None
        self._since_ns = 0
        self._opens: Finding | None = None
        """For the short way, if the text is replayed in its slot."""

    def cancel(self) -> None:
        """Nobody waits for it any more; `on_done` gets `Cancelled`, unless results are there already."""
        self._is_cancelled = True
        if self._group is not None:
            self._group.cancelled = True
        if self._job is not None:
            self._job.abandoned = True

    def start(self, route: Route, deadline_ns: int) -> None:
        """Choose a route and queue the documents there. Raises what is wrong with the options or the route."""
        if self._queue.is_closed:
            raise DispatcherClosed
        self._finisher = self._tokenizer.finisher(self._options)
        router, documents = self._router, self._documents
        if router.gpus.any and route != CPU and self._finisher is not None and documents:
            first, n_documents, lease = documents[0], len(documents), None
            if isinstance(first, ReservedText):
                lease = lease_of(first) if n_documents == 1 else None
                first = bytes_of(first)
            n_bytes = len(first) if n_documents == 1 else sum(map(len, documents))
            kind = content_kind(first)
            key = self._tokenizer.spec.digest
            self._since_ns = time.monotonic_ns()
            choice = router.choose(key, kind, n_bytes, n_documents, route, deadline_ns)
            self._spell = router.chooser.spell_of(choice, n_bytes, n_documents)
            if choice.route == GPU:
                if lease is not None and not deadline_ns and self._finisher.changes_nothing:
                    holds = router.chooser.holds(choice, key, kind, n_bytes, self._since_ns)
                    if holds is not None:
                        min_bytes, count = holds
                        asked = self._tokenizer, self._options, self._model, route
                        of_kind = "" if choice.reason == POLICY else kind
                        self._opens = Finding(asked, of_kind, min_bytes, 2 * n_bytes, _Ordinary(self, count))
                texts = [first] if n_documents == 1 and not isinstance(first, str) else [*map(_utf8, documents)]
                self._submit(
                    router.gpus.route(choice.gpu),
                    Group(key, texts, self._done, self._fell_back, self._options.count_only, kind, deadline_ns),
                    lease,
                )
                return
            if route == GPU and choice.reason == NO_GPU:
                raise NoGpuRoute(f"No GPU serves this model now: {router.gpus.why_not(key)}.")
        elif route == GPU and self._finisher is None:
            raise InvalidOption("The GPU route gives ids and counts only.")
        elif route == GPU and documents:
            raise NoGpuRoute(f"No GPU serves this model now: {router.gpus.why_not(self._tokenizer.spec.digest)}.")
        self._queue_job(None, deadline_ns)

    def as_group(self, text: ReservedText) -> Group:
        """What `start` would submit for a text that was launched without it."""
        self._finisher = self._tokenizer.finisher(self._options)
        memory, key = bytes_of(text), self._tokenizer.spec.digest
        self._group = group = Group(key, [memory], self._done, self._fell_back, False, content_kind(memory))
        return group

    def _submit(self, gpu: Submits, group: Group, lease: Lease | None) -> None:
        """Queue the documents on a GPU route, or on that of the slot that the only one lies in."""
        self._group = group
        if lease is not None:
            group.lease = lease
            if lease.route is not gpu and lease.route.ready:
                gpu = lease.route
        gpu.submit(group)

    def _done(self, group: Group) -> None:
        try:
            finisher = self._finisher
            if finisher is not None and finisher.changes_nothing and not group.needs_cpu:
                if self._opens is not None and group.lease is not None:
                    group.lease.way.open(self._opens)
                self._tell_of(group, group.ids, group.n_tokens)
            else:
                self._finish(group)
        except Exception as error:
            log.error("a group cannot be finished", extra={"error": type(error).__name__, "where": where(error)})
            self._tell(None, EngineFault("An internal error occurred; the call was not at fault. See the log."))

    def _finish(self, group: Group) -> None:
        finisher = self._finisher
        assert finisher is not None
        if group.needs_cpu:
            results: list[EncodedDocument | None] = [
                None
                if number in group.needs_cpu
                else finisher.finish_view(b"", n_tokens)
                if group.count_only
                else finished_ids(finisher, group.ids[number], n_tokens)
                for number, n_tokens in enumerate(group.n_tokens)
            ]
            self._queue_job(results, group.deadline_ns, doubtful(group, 0, len(group.lengths)))
            return
        finished = [
            finisher.finish_view(b"", n) if group.count_only else finished_ids(finisher, group.ids[number], n)
            for number, n in enumerate(group.n_tokens)
        ]
        ids: list[Ids | None] = [] if group.count_only else [document.ids for document in finished if document]
        self._tell_of(group, ids, [document.n_tokens for document in finished if document])

    def _tell_of(self, group: Group, ids: list[Ids | None], n_tokens: list[int]) -> None:
        """Everything was answered by the GPU."""
        self._router.count_group(self._model, len(n_tokens), group.n_bytes, sum(n_tokens))
        self._tell(EncodedGroup(ids, n_tokens, GPU), None)  # type: ignore[arg-type]

    def _fell_back(self, group: Group, reason: str) -> None:
        if self._is_cancelled or reason == CANCELLED:
            self._tell(None, Cancelled("The call was cancelled."))
        elif reason == EXPIRED:
            self._tell(None, deadline_exceeded())
        else:
            self._queue_job(None, group.deadline_ns)

    def _queue_job(
        self, results: list[EncodedDocument | None] | None, deadline_ns: int, again: Sequence[int] = ()
    ) -> None:
        """Let a worker encode what is missing."""
        slot = Uncounted(sum(map(len, self._documents)))
        job: Job[EncodedGroup | None] = Job(self._read, self._write, lambda error: None, self._tell, slot, deadline_ns)
        job.is_direct = True
        # What is no text at all goes to the worker as it is, which says so.
        if results is not None and (request := self._read_text()) is not None:
            job.claim()
            job.model, job.route = self._model, GPU if any(results) else CPU
            job.partial = Partial(request, results, again)
        self._job = job
        job.abandoned = self._is_cancelled
        if not self._queue.put([job]):
            self._tell(None, DispatcherClosed())

    def _read_text(self) -> EncodeRequest | None:
        try:
            return self._read()
        except InvalidText:
            return None

    def _read(self) -> EncodeRequest:
        documents = [text if isinstance(text, str) else _decoded(text, i) for i, text in enumerate(self._documents)]
        n_bytes = sum(map(len, self._documents))
        return EncodeRequest(self._model, self._tokenizer, documents, self._options, n_bytes, True, CPU)  # type: ignore[arg-type]

    def _write(self, request: Request, result: Result) -> EncodedGroup:
        documents: list[EncodedDocument] = result  # type: ignore[assignment]
        ids: list[Ids] = [] if self._options.count_only else [document.ids for document in documents]
        route = self._job.route if self._job else CPU
        return EncodedGroup(ids, [document.n_tokens for document in documents], route)

    def _tell(self, result: EncodedGroup | None, error: SidetokError | None) -> None:
        self._group = self._job = None
        self._documents = ()
        if self._spell is not None and error is None:
            self._spell.answered(self._since_ns, time.monotonic_ns())
        try:
            self._on_done(None if error else result, error)
        except Exception as failure:
            log.error(
                "a group could not be handed over", extra={"error": type(failure).__name__, "where": where(failure)}
            )


class _Ordinary:
    """See `dispatcher.gpu.short_way.Ordinary`: calls that ask for the same as one that took the ordinary way."""

    def __init__(self, call: GroupCall, count_choice: Callable[[], object]) -> None:
        # Not the call, which has a callback, and whatever that refers to.
        self._tokenizer, self._options, self._model = call._tokenizer, call._options, call._model
        self._queue, self._router, self._count_choice = call._queue, call._router, count_choice

    def again(self, text: ReservedText, on_done: OnDone) -> tuple[Group, GroupCall]:
        """See `Ordinary`."""
        call = GroupCall(self._tokenizer, [text], on_done, self._options, self._model, self._queue, self._router)
        return call.as_group(text), call

    def count_choice(self) -> None:
        """See `Ordinary`."""
        self._count_choice()

    def count(self, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """See `Ordinary`."""
        self._router.count_noted(self._model, n_documents, n_bytes, n_tokens)


def _utf8(text: Text) -> bytes | memoryview:
    if isinstance(text, str):
        return text.encode()
    return bytes_of(text) if isinstance(text, ReservedText) else text


def _decoded(text: bytes | memoryview | ReservedText, number: int) -> str:
    try:
        return str(bytes_of(text) if isinstance(text, ReservedText) else text, "utf-8")
    except UnicodeDecodeError as error:
        position = error.start
    # Not where it was caught: compiled code keeps that error as the context, and it holds the document.
    raise InvalidText(f"document {number} is not UTF-8: byte {position} cannot stand there")
