"""Results of a call: views of pinned memory that nobody overwrites while somebody still holds one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.execution import ExecutionContext
from gpu_core.layout import FLAG_DECIMALS, FLAG_IDS, FLAG_TOKEN_STARTS, header_flags
from gpu_core.waiting import Waited

Ids = NDArray[np.uint32]


class Lease:
    """The right to use an execution context. It ends with `release`, or when nothing refers to the lease any more."""

    __slots__ = ("_free", "context")

    def __init__(self, free: list[ExecutionContext]) -> None:
        self._free: list[ExecutionContext] | None = free
        self.context = free.pop()

    def release(self) -> None:
        """Give the context back; arrays that were handed out from it may change from now on."""
        free, self._free = self._free, None
        if free is not None:
            free.append(self.context)

    def __del__(self) -> None:
        self.release()


class HeldIds(np.ndarray[tuple[Any, ...], np.dtype[np.uint32]]):
    """An array in the memory of an execution context; it and all views of it keep the lease of the context."""

    lease: Lease


def held(array: Ids, lease: Lease) -> Ids:
    """A read-only view of the array; the lease lives as long as this or any view of it."""
    view = array.view(HeldIds)
    view.lease = lease
    view.flags.writeable = False
    return view


class PartResult:
    """What one replay answers, on the host: made while it runs, read when it is complete.

    The lease is held as long as the arrays are in the context's memory.
    """

    __slots__ = ("decimals", "document_decimals", "document_tokens", "ids", "lease", "text_starts", "token_starts")

    def __init__(self, lease: Lease, n_documents: int, flags: int) -> None:
        context = lease.context
        self.lease: Lease | None = lease
        self.document_tokens = context.document_tokens[: n_documents + 1]
        """Where the ids of each piece begin, and the end of the last."""
        self.ids: Ids | None = None
        self.token_starts: Ids | None = None
        self.text_starts: list[int] = []
        """Where each piece begins in the text of the part; only with token starts."""
        self.decimals: memoryview | None = None
        self.document_decimals: NDArray[np.uint32] | None = None
        """Where those of each document begin, and the end of the last."""
        if flags & FLAG_DECIMALS:
            self.decimals, self.document_decimals = context.decimals, context.document_decimals[: n_documents + 1]
        if header_flags(flags) & FLAG_IDS:
            self.ids = held(context.ids, lease)
        if flags & FLAG_TOKEN_STARTS:
            self.token_starts = held(context.token_starts, lease)
            self.text_starts = context.document_starts[:n_documents].tolist()

    def take_documents(self, first_pieces: NDArray[np.int64], document_starts: NDArray[np.int64]) -> None:
        """After a replay over pieces: let the documents that these are of be what the part holds.

        `first_pieces`: number of each document's first piece, and of all pieces; `document_starts`: where it begins.
        """
        self.document_tokens = self.document_tokens[first_pieces]
        if self.token_starts is not None:
            self.text_starts = document_starts[:-1].tolist()

    @classmethod
    def made_of(cls, ids: Ids, token_starts: Ids) -> PartResult:
        """A part of one document that holds no context."""
        part = cls.__new__(cls)
        part.lease, part.ids, part.token_starts, part.text_starts = None, ids, token_starts, [0]
        part.decimals = part.document_decimals = None
        part.document_tokens = np.array([0, len(ids)], dtype=np.uint32)
        return part

    def packed(self) -> tuple[Ids | None, Ids]:
        """All ids, if they were asked for, and where those of each document begin; both keep the lease."""
        ids = None if self.ids is None else self.ids[: self.document_tokens.item(-1)]
        return ids, self.document_tokens if self.lease is None else held(self.document_tokens, self.lease)

    def detach(self) -> None:
        """Copy the arrays, so that the context is free again."""
        self.document_tokens = self.document_tokens.copy()
        n_tokens = int(self.document_tokens[-1])
        self.ids = None if self.ids is None else self.ids[:n_tokens].copy()
        self.token_starts = None if self.token_starts is None else self.token_starts[:n_tokens].copy()
        if self.decimals is not None and self.document_decimals is not None:
            self.document_decimals = self.document_decimals.copy()
            self.decimals = memoryview(bytes(self.decimals[: self.document_decimals.item(-1)]))
        self.release()

    def release(self) -> None:
        """End the lease."""
        if self.lease is not None:
            self.lease.release()
            self.lease = None


@dataclass(slots=True)
class Times:
    """Nanoseconds of one call, summed over its replays."""

    fill_ns: int = 0
    launch_ns: int = 0
    wait_ns: int = 0
    slept_ns: int = 0
    polled_ns: int = 0

    def add_wait(self, waited: Waited) -> None:
        """Count one wait."""
        total, slept, polled = waited
        self.wait_ns += total
        self.slept_ns += slept
        self.polled_ns += polled

    def add(self, other: Times) -> None:
        """Count what another call took, too."""
        self.fill_ns += other.fill_ns
        self.launch_ns += other.launch_ns
        self.add_wait(Waited(other.wait_ns, other.slept_ns, other.polled_ns))


class Encoding:
    """The results of one call, by document."""

    def __init__(
        self,
        parts: list[PartResult],
        pieces: list[list[tuple[int, int, int]]] | None,
        n_documents: int,
        needs_cpu: dict[int, str],
        times: Times,
    ) -> None:
        """`pieces[document]` are (part, place in it, first byte in the document); None: one part, in order."""
        self.parts = parts
        self.needs_cpu = needs_cpu
        """Documents that the device does not answer, with the reason. They have no ids here."""
        self.times = times
        self._pieces = pieces
        self._n_documents = n_documents

    def __len__(self) -> int:
        return self._n_documents

    def n_tokens(self, document: int) -> int:
        """Number of ids of a document."""
        return sum(end - begin for _part, begin, end, _shift in self._spans(document))

    def ids(self, document: int) -> Ids:
        """Ids of a document: a view without a copy, unless the document was cut into several replays."""
        if self._pieces is None and document not in self.needs_cpu:
            part = self.parts[0]
            tokens = part.document_tokens
            return _asked(part.ids)[tokens.item(document) : tokens.item(document + 1)]
        return _joined([_asked(part.ids)[begin:end] for part, begin, end, _shift in self._spans(document)])

    def decimals(self, document: int) -> memoryview | None:
        """Ids of a document as decimal numbers with commas between them, as long as the result is not released.

        None if there are none: not asked for, answered by a second try, or more than there was room for.
        """
        if self._pieces is not None or document in self.needs_cpu:
            return None
        part = self.parts[0]
        if part.decimals is None or part.document_decimals is None:
            return None
        begin, end = part.document_decimals.item(document), part.document_decimals.item(document + 1)
        if end > len(part.decimals):
            return None
        return part.decimals[begin : max(begin, end - 1)]

    def ids_of_several(self, first: int, end: int) -> tuple[Ids, NDArray[np.int64]]:
        """Ids of the documents from `first` to before `end`, none of which needs the CPU, and how many each has."""
        if self._pieces is None:
            part = self.parts[0]
            tokens = part.document_tokens[first : end + 1].astype(np.int64)
            return _asked(part.ids)[tokens[0] : tokens[-1]].view(np.ndarray), np.diff(tokens)
        rows = [self.ids(document) for document in range(first, end)]
        return np.concatenate(rows), np.array([len(row) for row in rows])

    def token_starts(self, document: int) -> Ids:
        """Byte position in the document of the first byte of each token."""
        spans = self._spans(document)
        return _joined([_asked(part.token_starts)[begin:end] - shift for part, begin, end, shift in spans])

    def adopt(self, documents: Sequence[int], other: Encoding) -> None:
        """Let these documents, which need the CPU, have what another call answered in their place, in order.

        It is copied: a result holds no more contexts for it.
        """
        other.detach()
        if self._pieces is None:
            self._pieces = [[(0, document, 0)] for document in range(self._n_documents)]
        n_parts = len(self.parts)
        self.parts += other.parts
        self.times.add(other.times)
        for place, document in enumerate(documents):
            if place in other.needs_cpu:
                self.needs_cpu[document] = other.needs_cpu[place]
                continue
            del self.needs_cpu[document]
            pieces = [(0, place, 0)] if other._pieces is None else other._pieces[place]
            self._pieces[document] = [(n_parts + part, at, first) for part, at, first in pieces]

    def put(self, document: int, ids: Ids, token_starts: Ids) -> None:
        """Let a document that needs the CPU have these ids, and token starts in the document."""
        if self._pieces is None:
            self._pieces = [[(0, place, 0)] for place in range(self._n_documents)]
        del self.needs_cpu[document]
        self._pieces[document] = [(len(self.parts), 0, 0)]
        self.parts.append(PartResult.made_of(ids, token_starts))

    def detach(self) -> None:
        """Copy what is still in the memory of execution contexts, and give these back."""
        for part in self.parts:
            if part.lease is not None:
                part.detach()

    def release(self) -> None:
        """Give the execution contexts back now; arrays that were handed out may change from now on."""
        for part in self.parts:
            part.release()

    def _spans(self, document: int) -> list[tuple[PartResult, int, int, np.uint32]]:
        """(part, first id, end, what to take off token starts) of each piece of a document."""
        if document in self.needs_cpu:
            return []
        pieces = [(0, document, 0)] if self._pieces is None else self._pieces[document]
        spans = []
        for number, place, first_byte in pieces:
            part = self.parts[number]
            begin, end = part.document_tokens.item(place), part.document_tokens.item(place + 1)
            # Wraps around below 0, and back when it is taken off.
            shift = (part.text_starts[place] - first_byte) & 0xFFFFFFFF if part.text_starts else 0
            spans.append((part, begin, end, np.uint32(shift)))
        return spans


@dataclass(slots=True)
class PackedEncoding:
    """Results of many documents as arrays in pinned memory, which stay as they are until `release`."""

    ids: Ids | None
    """All ids, one document after the other; None if they were only counted."""
    document_tokens: Ids
    """Where each document's ids begin, and the end of the last. Those of a document that needs the CPU mean nothing."""
    needs_cpu: dict[int, str]
    times: Times
    part: PartResult

    def release(self) -> None:
        """Give the execution context back now; the arrays may change from now on."""
        self.part.release()


@dataclass(slots=True)
class ResidentEncoding:
    """Results that stayed on the device. The arrays speak `__cuda_array_interface__` and DLPack."""

    ids: Any
    """All ids, one document after the other."""
    document_tokens: Any
    """Where each document's ids begin, and the end of the last. Those of a document that needs the CPU mean nothing."""
    token_starts: Any
    """Byte position of each token in the text of the whole batch, or None."""
    n_tokens: int
    needs_cpu: dict[int, str]
    times: Times
    lease: Lease

    def release(self) -> None:
        """Give the execution context back now; the arrays may change from now on. Without it: when none is held."""
        self.lease.release()


def _asked(array: Ids | None) -> Ids:
    if array is None:
        raise ValueError("this was not asked for when the documents were encoded")
    return array


def _joined(rows: list[Ids]) -> Ids:
    if len(rows) == 1:
        return rows[0]
    return np.concatenate(rows) if rows else np.zeros(0, np.uint32)
