"""Long runs of characters of one kind, found without a look at every border between two kinds.

    rows of 128    [words and -][-----------][-----------][--- words  ]
    looked at       w   a d      -   -   -    -   -   -    -   w   r       four places of each row
    uniform                         yes          yes                       all of the row, where the four are equal
    run                     ------------------------------                 and to both sides as far as it goes

A run of 255 bytes or more fills a row.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROW = 128
SHORTEST = 2 * ROW - 1
"""Every run of so many bytes is found."""
_LOOK = ROW // 4
_ROWS = 2048
"""Rows at a time: what is computed of them stays in the cache."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run of one kind begins and ends, and the kinds beside it; 0 beside the document."""

    begin: int
    end: int
    kind: int
    before: int
    behind: int


class AsciiRuns:
    """Finds runs in ASCII; `kinds` is the kind of each of 256 bytes, 0: there are no runs of it."""

    def __init__(self, kinds: bytes, min_run: int) -> None:
        self._kinds, self._min_run = kinds, min_run
        self._ranges = {kind: _ranges(np.frombuffer(kinds[:128], np.uint8) == kind) for kind in set(kinds[:128])}

    def find(self, document: bytes) -> list[Run]:
        """Runs that are longer than `min_run`, which is `SHORTEST` or more."""
        n_rows = len(document) // ROW
        data = np.frombuffer(document, np.uint8)
        looked = document[: n_rows * ROW : _LOOK].translate(self._kinds)
        looks = np.frombuffer(looked, "<u4") if n_rows else np.zeros(0, "<u4")
        kinds = (looks & 0xFF).astype(np.uint8)
        kinds[looks != kinds * np.uint32(0x01010101)] = 0
        rows = data[: n_rows * ROW].reshape(n_rows, ROW)
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            if kind:
                self._leave_uniform(rows, kinds, kind)
        # A row that is not uniform is of kind 0 now.
        borders = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
        firsts = np.concatenate([[0], borders]) if n_rows else borders
        found = []
        for first, end in zip(firsts.tolist(), [*borders.tolist(), n_rows], strict=False):
            if kinds[first]:
                run = self._extended(document, first * ROW, end * ROW, int(kinds[first]))
                if run.end - run.begin > self._min_run:
                    found.append(run)
        return found

    def _leave_uniform(self, rows: NDArray[np.uint8], kinds: NDArray[np.uint8], kind: int) -> None:
        """Set the kind of those rows to 0 that look like one kind and are not."""
        numbers = np.flatnonzero(kinds == kind)
        # Fresh memory is slow at first, more so on a virtual machine.
        scratch = [np.empty((_ROWS, ROW), np.uint8) for _ in range(3)]
        for at in range(0, len(numbers), _ROWS):
            some = numbers[at : at + _ROWS]
            side_by_side = some[-1] - some[0] == len(some) - 1
            text = rows[some[0] : some[-1] + 1] if side_by_side else rows[some]
            kinds[some[~_uniform(text, self._ranges[kind], scratch)]] = 0

    def _extended(self, document: bytes, begin: int, end: int, kind: int) -> Run:
        """The run that these rows lie in."""
        own = bytes([kind])
        left = document[max(begin - ROW, 0) : begin].translate(self._kinds)
        right = document[end : end + ROW].translate(self._kinds)
        begin -= len(left) - len(left := left.rstrip(own))
        end += len(right) - len(right := right.lstrip(own))
        return Run(begin, end, kind, left[-1] if left else 0, right[0] if right else 0)


def runs_in(kinds: NDArray[np.uint8], min_run: int) -> list[Run]:
    """Runs of one kind other than 0 that are longer than that."""
    if not len(kinds):
        return []
    borders = np.concatenate([[0], np.flatnonzero(kinds[1:] != kinds[:-1]) + 1, [len(kinds)]])
    found = []
    for i in np.flatnonzero(np.diff(borders) > min_run).tolist():
        begin, end = int(borders[i]), int(borders[i + 1])
        before, behind = kinds[begin - 1] if begin else 0, kinds[end] if end < len(kinds) else 0
        if kinds[begin]:
            found.append(Run(begin, end, int(kinds[begin]), int(before), int(behind)))
    return found


def _ranges(is_of_kind: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last of the bytes of a kind that follow each other."""
    steps = np.diff(np.concatenate([[0], is_of_kind.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(steps == 1).tolist(), (np.flatnonzero(steps == -1) - 1).tolist(), strict=True))


def _uniform(
    rows: NDArray[np.uint8], ranges: list[tuple[int, int]], scratch: list[NDArray[np.uint8]]
) -> NDArray[np.bool_]:
    """Which rows lie in these ranges: a few instructions for many bytes at once, in memory that is there."""
    if _all_inside(rows, ranges, scratch[0][: len(rows)]):
        return np.ones(len(rows), np.bool_)
    shifted, outside, of_one = (array[: len(rows)] for array in scratch)
    for number, (first, last) in enumerate(ranges):
        # Bytes below the first one wrap around.
        np.subtract(rows, np.uint8(first), out=shifted)
        np.greater(shifted, np.uint8(last - first), out=(of_one if number else outside).view(np.bool_))
        if number:
            np.bitwise_and(outside, of_one, out=outside)
    inside: NDArray[np.bool_] = outside.max(axis=1) == 0
    return inside


def _all_inside(rows: NDArray[np.uint8], ranges: list[tuple[int, int]], shifted: NDArray[np.uint8]) -> bool:
    """Whether no byte is outside, which is so nearly always; to look for the lowest is the fastest of all."""
    lowest, highest = int(rows.min()), int(rows.max())
    if any(first <= lowest and highest <= last for first, last in ranges):
        return True
    if lowest < ranges[0][0] or highest > ranges[-1][1]:
        return False
    for (_, last), (following, _) in itertools.pairwise(ranges):
        # Bytes between the two ranges become the lowest ones.
        np.subtract(rows, np.uint8(last + 1), out=shifted)
        if shifted.min() < following - last - 1:
            return False
    return True
