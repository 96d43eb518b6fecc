"""What goes to a GPU as one group, and how its results come back to the jobs behind it.

Bundle      jobs of one round, their first try
SecondTry   documents of one job that may not be in normal form, rewritten by a worker: a second try, and the last
merged      what a worker makes of a request that came back with some of its results
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dispatcher.costs import content_kind
from dispatcher.finisher import Finisher
from dispatcher.gpu.group import Group, Ids
from dispatcher.gpu.held_ids import HeldIds
from dispatcher.job import Job, Partial
from dispatcher.policy import GPU
from dispatcher.request import EncodedDocument, EncodeOptions, EncodeRequest
from gpu_core.layout import REASON_NOT_NORMAL, REASONS
from gpu_core.normal_form import Rewriter

NOT_NORMAL = REASONS[REASON_NOT_NORMAL]


class Returns(Protocol):
    """Takes back what a group came back with."""

    def finish(self, bundle: Bundle | SecondTry, group: Group) -> None:
        """The group has results."""

    def give_up(self, bundle: Bundle | SecondTry, reason: str) -> None:
        """It has none."""


class Bundle:
    """Jobs of one round that go to the GPU together."""

    __slots__ = ("_finisher", "_router", "jobs", "requests")

    def __init__(self, router: Returns, finisher: Finisher, first: EncodeRequest) -> None:
        self._router = router
        self._finisher = finisher
        self.jobs: list[Job[Any]] = []
        self.requests: list[EncodeRequest] = []

    def group(self, kind: str) -> Group:
        """The documents as a group that tells this bundle. Raises `UnicodeEncodeError` for a lone surrogate."""
        first, options = self.jobs[0], self.requests[0].options
        alone = len(self.jobs) == 1
        texts = self.requests[0].texts() if alone else [text for request in self.requests for text in request.texts()]
        group = Group(
            self.requests[0].tokenizer.spec.digest,
            texts,
            self._done,
            self._fell_back,
            count_only=options.count_only,
            kind=kind,
            deadline_ns=first.deadline_ns if alone else 0,
            wants_decimals=any([request.lists_ids for request in self.requests]),
        )
        for job in self.jobs:
            job.route = GPU
        if alone:
            first.group = group
        return group

    def results(self, group: Group, first: int, last: int, reads_ids: bool) -> list[EncodedDocument | None]:
        """What the group has for some of its documents; None for those that it did not answer.

        Without `reads_ids` there are no packed ids where there are decimal numbers.
        """
        finisher, needs_cpu, n_tokens = self._finisher, group.needs_cpu, group.n_tokens
        if group.count_only:
            return [None if i in needs_cpu else finisher.finish_view(b"", n_tokens[i]) for i in range(first, last)]
        ids, decimals = group.ids, group.decimals
        return [finished_ids(finisher, ids[i], n_tokens[i], decimals.get(i), reads_ids) for i in range(first, last)]

    def doubtful(self, group: Group, first: int, last: int) -> list[int]:
        """Which of these documents are worth a second try, counted from the first one."""
        return doubtful(group, first, last)

    def _done(self, group: Group) -> None:
        self._router.finish(self, group)

    def _fell_back(self, group: Group, reason: str) -> None:
        self._router.give_up(self, reason)


class SecondTry:
    """Documents of one job that were rewritten; what the first try answered stays as it is."""

    __slots__ = ("_finisher", "_numbers", "_partial", "_router", "jobs", "n_bytes", "requests", "texts")

    def __init__(
        self, router: Returns, finisher: Finisher, job: Job[Any], partial: Partial, rewriter: Rewriter
    ) -> None:
        """Rewrites, which takes 14 ns a byte or so. `texts` is empty when nothing could be rewritten."""
        self._router = router
        self._finisher = finisher
        self._partial = partial
        self.jobs = [job]
        self.requests = [partial.request]
        documents = partial.request.documents
        texts = {number: rewriter.rewrite(documents[number].encode()) for number in partial.doubtful}
        self.texts = [text for text in texts.values() if text is not None]
        self._numbers = [number for number, text in texts.items() if text is not None]
        self.n_bytes = sum(map(len, self.texts))

    def group(self) -> Group:
        """The documents as a group that tells this try."""
        job, request = self.jobs[0], self.requests[0]
        job.group = group = Group(
            request.tokenizer.spec.digest,
            self.texts,
            self._done,
            self._fell_back,
            count_only=request.options.count_only,
            kind=content_kind(request.documents[self._numbers[0]]),
            deadline_ns=job.deadline_ns,
            normal_form=True,
            wants_decimals=request.lists_ids,
        )
        job.route = GPU
        return group

    def results(self, group: Group, first: int, last: int, reads_ids: bool) -> list[EncodedDocument | None]:
        """What there is for all documents of the job, after both tries."""
        results, finisher = [*self._partial.results], self._finisher
        for at, number in enumerate(self._numbers):
            if at in group.needs_cpu:
                continue
            n_tokens = group.n_tokens[at]
            results[number] = (
                finisher.finish_view(b"", n_tokens)
                if group.count_only
                else finished_ids(finisher, group.ids[at], n_tokens, group.decimals.get(at), reads_ids)
            )
        return results

    def doubtful(self, group: Group, first: int, last: int) -> list[int]:
        """None: there is no third try."""
        return []

    def _done(self, group: Group) -> None:
        self._router.finish(self, group)

    def _fell_back(self, group: Group, reason: str) -> None:
        self._router.give_up(self, reason)


def doubtful(group: Group, first: int, last: int) -> list[int]:
    """Which documents of a group may be answered once they are rewritten, counted from the first one."""
    return [i - first for i, reason in sorted(group.needs_cpu.items()) if first <= i < last and reason == NOT_NORMAL]


def finished_ids(
    finisher: Finisher, ids: Ids | None, n_tokens: int, decimals: bytes | None = None, reads_ids: bool = True
) -> EncodedDocument | None:
    """The result of one document; ids that lie in a slot are copied, and the slot is given back."""
    if ids is None:
        return None
    result = None if reads_ids or decimals is None else finisher.listed(decimals, n_tokens)
    if isinstance(ids, HeldIds):
        result = result or finisher.finish_view(ids.data, n_tokens)
        ids.release()
    elif result is None:
        result = finisher.finish(ids)
    if decimals is not None and not result.truncated and not result.decimals:
        result.decimals = finisher.decimals(decimals)
    return result


def merged(
    partial: Partial, encode: Callable[[list[str], EncodeOptions], list[EncodedDocument]]
) -> list[EncodedDocument]:
    """The results of a request, once what is missing was encoded, in the order of its documents."""
    request, results = partial.request, partial.results
    missing = [i for i, result in enumerate(results) if result is None]
    if missing:
        encoded = encode([request.documents[i] for i in missing], request.options)
        for i, result in zip(missing, encoded, strict=True):
            results[i] = result
    return results  # type: ignore[return-value]
