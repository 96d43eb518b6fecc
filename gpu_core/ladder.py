"""Which size class takes a batch, and how a batch that fits none becomes several. Pure decisions, no GPU.

documents   aaaa bbbbbbbbbbbbbbbbbb cccc          one class of 8 bytes
parts       [aaaa bbbb] [bbbbbbbb] [bbbbbb] ...   cut only where the tokens of both sides stay the same
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_core.layout import MAX_CAPACITY, workspace
from gpu_core.options import GpuOptions

BYTES_PER_DOCUMENT = 8
"""A class has room for one document in so many bytes of its capacity."""
MIN_DOCUMENTS = 64
"""A class has room for so many documents at least."""

Cut = Callable[[int, int, int], int | None]
"""(document, low, high) -> the last safe cut in low < cut <= high, as a byte position; None if there is none."""


@dataclass(frozen=True, slots=True)
class SizeClass:
    """What one execution context can hold."""

    capacity: int
    """Bytes of text."""
    max_documents: int

    def holds(self, n_bytes: int, n_documents: int) -> bool:
        """Whether a batch fits."""
        return n_bytes <= self.capacity and n_documents <= self.max_documents

    def device_bytes(self, token_starts: bool) -> int:
        """Device memory of one execution context at most: what lies in pinned memory is counted too."""
        return sum(buffer.n_bytes for buffer in workspace(self.capacity, self.max_documents, token_starts))


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `start` to `end` of a document: all of it, unless it had to be cut."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one replay encodes."""

    pieces: tuple[Piece, ...]

    @property
    def n_bytes(self) -> int:
        """Length of its text."""
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Plan:
    """The replays of one call, in order."""

    parts: tuple[Part, ...]
    uncut: tuple[int, ...]
    """Documents that are too long and have no safe cut where one is needed: they need the CPU."""


class Ladder:
    """The size classes that are set up, smallest first."""

    def __init__(self, classes: Sequence[SizeClass]) -> None:
        if not classes:
            raise ValueError("a ladder needs a size class")
        self.classes = tuple(sorted(classes, key=lambda size: size.capacity))

    @property
    def top(self) -> SizeClass:
        """The largest class."""
        return self.classes[-1]

    def fitting(self, n_bytes: int, n_documents: int) -> int:
        """Index of the smallest class that holds a batch; the number of classes when none does."""
        for index, size in enumerate(self.classes):
            if size.holds(n_bytes, n_documents):
                return index
        return len(self.classes)

    def plan(self, lengths: Sequence[int], cut: Cut) -> Plan:
        """Fill replays of the top class in order, and cut a document only if it is longer than that class."""
        planner = _Planner(self.top, cut)
        for document, length in enumerate(lengths):
            planner.add(document, length)
        return planner.finish()


class _Planner:
    def __init__(self, size: SizeClass, cut: Cut) -> None:
        self._size, self._cut = size, cut
        self._parts: list[Part] = []
        self._pieces: list[Piece] = []
        self._room = size.capacity
        self._uncut: list[int] = []

    def add(self, document: int, length: int) -> None:
        if length > self._size.capacity:
            self._add_cut(document, length)
            return
        if length > self._room or len(self._pieces) == self._size.max_documents:
            self._close()
        self._append(Piece(document, 0, length))

    def finish(self) -> Plan:
        self._close()
        return Plan(tuple(self._parts), tuple(self._uncut))

    def _add_cut(self, document: int, length: int) -> None:
        """All pieces of a document, or none: a document is answered by the device as a whole or not at all."""
        ends, start = [], 0
        while length - start > self._size.capacity:
            end = self._cut(document, start, start + self._size.capacity)
            if end is None:
                self._uncut.append(document)
                return
            ends.append(end)
            start = end
        self._close()
        for first, end in zip([0, *ends], [*ends, length], strict=True):
            if end - first > self._room:
                self._close()
            self._append(Piece(document, first, end))

    def _append(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._room -= piece.end - piece.start

    def _close(self) -> None:
        if self._pieces:
            self._parts.append(Part(tuple(self._pieces)))
        self._pieces, self._room = [], self._size.capacity


def size_classes(options: GpuOptions) -> tuple[SizeClass, ...]:
    """The classes that the options ask for, smallest first."""
    return tuple(
        SizeClass(capacity, min(options.max_documents, max(MIN_DOCUMENTS, capacity // BYTES_PER_DOCUMENT)))
        for capacity in sorted({min(size, MAX_CAPACITY) for size in options.size_classes_bytes})
    )


def within_budget(classes: Sequence[SizeClass], options: GpuOptions) -> tuple[SizeClass, ...]:
    """The smallest classes whose contexts fit the memory budget together; the smallest one always stays."""
    if options.memory_budget_bytes == 0:
        return tuple(classes)
    kept: list[SizeClass] = []
    left = options.memory_budget_bytes
    for size in sorted(classes, key=lambda size: size.capacity):
        left -= size.device_bytes(options.token_starts) * options.contexts_per_class
        if left < 0 and kept:
            break
        kept.append(size)
    return tuple(kept)
