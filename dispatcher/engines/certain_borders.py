"""Places in a long run of letters, digits or signs that no merge rule crosses, whatever stands around.

    text            ... k q x t h w z ...
    absent          q|x             no rule joins a token that ends in `q` with one that begins with `x`
    first           t h             joined before another rule takes either of them: its rank is below those of rules
                                    of a token that ends in `x` with `t`, and of `h` with a token that begins with `w`
    before first    x|th            no rule joins a token that ends in `x` with one that begins with `th`

`q|x` and `x|th` are certain borders: no merge goes over them, so that the ids of the parts, one after the other, are
the ids of the whole. Of a rule that occurs twice, the rank that says less is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

STEP = 72
"""Bytes from one border to the next, about: engines have a cheap way for pre-tokens that are so short."""
NARROW, WIDE = 24, 48
"""Places at which a border is looked for, from where one is wanted."""
MARGIN = 64
"""Bytes before and behind these that are of their kind, too. An added token may reach into a run so far."""
_AT_ONCE = 8
_BEHIND = 2
_NEVER = np.int32(2**31 - 1)
_ABSENT, _BEFORE_FIRST, _IS_FIRST = 1, 2, 4


class CertainBorders:
    """Finds the certain borders of a byte-level BPE model, in long runs of ASCII."""

    def __init__(self, merges: list[Any], kinds: Iterable[bytes], window: int = WIDE) -> None:
        """`merges` of the file, in the order of their ranks.

        `kinds`: printable ASCII of which runs are made. Each is an entry of the vocabulary; no pre-token and no added
        token begins or ends in a run of one kind, but in the first or last `MARGIN` bytes. `window`: `NARROW` or
        `WIDE`; more than `STEP` less this lie between two borders.
        """
        kinds, self._window = list(kinds), window
        self._codes, self._kinds = np.zeros(256, dtype=np.int32), np.zeros(256, dtype=np.uint8)
        for number, kind in enumerate(kinds, 1):
            self._kinds[list(kind)] = number
        known = [*b"".join(kinds)]
        self._n = len(known) + 1
        self._codes[known] = np.arange(1, self._n)
        self._by_three = _by_three(_Rules.of(merges, self._codes)).ravel()

    def find(self, text: bytes) -> list[int]:
        """Borders in ascending order, at most one for each `STEP` bytes."""
        width = self._window + 2 * MARGIN
        if len(text) < width:
            return []
        around = sliding_window_view(np.frombuffer(text.translate(self._kinds.tobytes()), np.uint8), width)[::STEP]
        lowest = around.min(axis=1)
        places = np.flatnonzero((lowest > 0) & (lowest == around.max(axis=1))) * STEP + MARGIN
        data = np.frombuffer(text, np.uint8)
        found = []
        for _ in range(0, self._window, _AT_ONCE):
            is_border = self._are_borders(data, places)
            index = is_border.argmax(axis=1)
            is_found = is_border[np.arange(len(places)), index]
            found.append((places + index)[is_found])
            places = places[~is_found] + _AT_ONCE
        borders: list[int] = np.sort(np.concatenate(found)).tolist()
        return borders

    def _are_borders(self, data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Of each of these places and the next ones, `_AT_ONCE` in all, whether it is a border."""
        codes = self._codes[sliding_window_view(data, _AT_ONCE + _BEHIND + 1)[places - 1]]
        properties = self._by_three[(codes[:, :-2] * self._n + codes[:, 1:-1]) * self._n + codes[:, 2:]]
        before, here = properties[:, :-1], properties[:, 1:]
        # The bit of the first is moved to where the other has its own.
        are: NDArray[np.bool_] = ((before & _ABSENT) | (before & (here >> 1) & _BEFORE_FIRST)) > 0
        return are


@dataclass(frozen=True, slots=True)
class _Rules:
    """What is known of all rules by the characters at the seam; index 0 stands for all other characters."""

    rank: NDArray[np.int32]
    """(n, n): of the rule of two single characters."""
    into_single: NDArray[np.int32]
    """(n, n): the lowest rank of a rule of a token that ends in the first with the second alone."""
    of_single: NDArray[np.int32]
    """(n, n): of the first alone with a token that begins with the second."""
    joins: NDArray[np.bool_]
    """(n, n): whether any rule joins a token that ends in the first with one that begins with the second."""
    joins_two: NDArray[np.bool_]
    """(n, n, n): the same for a token that begins with the second and the third."""

    @classmethod
    def of(cls, merges: list[Any], codes: NDArray[np.int32]) -> _Rules:
        """Strings "left right", or pairs; `codes` by byte."""
        pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
        data = np.frombuffer("\n".join([pair for pair in pairs if not pair.startswith("#version")]).encode(), np.uint8)
        ends = np.append(np.flatnonzero(data == 0x0A), len(data))
        begins, seams = np.append(0, ends[:-1] + 1), np.flatnonzero(data == 0x20)
        # ASCII characters stand for their bytes; others have code 0, as the line end behind a single character.
        left, right, second = codes[data[seams - 1]], codes[data[seams + 1]], codes[np.append(data, 0x0A)[seams + 2]]
        is_single_left, is_single_right = seams - begins == 1, ends - seams == 2
        n, ranks = 1 + int(codes.max()), np.arange(len(ends), dtype=np.int32)
        rank, into_single, of_single = (np.full((n, n), _NEVER) for _ in range(3))
        found = cls(rank, into_single, of_single, np.zeros((n, n), np.bool_), np.zeros((n, n, n), np.bool_))
        both = is_single_left & is_single_right
        found.rank[left[both], right[both]] = ranks[both]
        np.minimum.at(found.into_single, (left[is_single_right], right[is_single_right]), ranks[is_single_right])
        np.minimum.at(found.of_single, (left[is_single_left], right[is_single_left]), ranks[is_single_left])
        found.joins[left, right] = True
        found.joins_two[left, right, second] = True
        return found


def _by_three(rules: _Rules) -> NDArray[np.uint8]:
    """What is known of three characters x, y, z, shape (n, n, n).

    `_ABSENT`: x|y is a border. `_BEFORE_FIRST`: it is one if y and z are joined first, for which no rule of x and y is
    in the way. `_IS_FIRST`: no rule of y and z is in the way of x and y.
    """
    absent = ~rules.joins[:, :, None]
    before_first = (rules.rank[None] < rules.into_single[:, :, None]) & ~rules.joins_two
    is_first = rules.rank[:, :, None] < rules.of_single[None]
    found = absent * np.uint8(_ABSENT) | before_first * np.uint8(_BEFORE_FIRST) | is_first * np.uint8(_IS_FIRST)
    found[0], found[:, 0], found[:, :, 0] = 0, 0, 0
    return found
