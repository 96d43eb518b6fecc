"""Where a text may be cut in two so that the ids of both parts, one after the other, are the ids of the whole.

tokens(x + y) = tokens(x) + tokens(y) for any x, y whose last and first characters are one of

    letter | ASCII that is no letter      all byte-level families; an ASCII character also never composes with x
    letter | another class                cl100k, Qwen 2, GPT-2
    letter | punctuation, newline, blank, number, CJK, and CJK | any other class      DeepSeek-V3
    number | another class                all

and when no added token lies across the cut. BPE over characters has other pairs, see `gpu_core.bridge_cut`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_core.classes import FAMILY_CLASSES, family_classes, normal_form_classes
from gpu_core.errors import UnsupportedTokenizer

SEARCH_BYTES = 1 << 16
"""How far before the limit a cut is searched for; the longest gap seen in real text is 136 characters."""
_ASCII_LETTER = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ASCII_AFTER = frozenset(range(0x20, 0x7F)) - _ASCII_LETTER | frozenset(b"\r\n")
_PLAIN = {
    ("letter", after) for after in ("number", "newline", "plain_space", "blank", "other")
} | {("number", after) for after in ("letter", "newline", "plain_space", "blank", "other")}  # fmt: skip
_BOUNDARIES: dict[str, set[tuple[str, str]]] = {
    "cl100k": _PLAIN,
    "qwen2": _PLAIN,
    "gpt2": _PLAIN,
    "deepseek_v3": {
        ("letter", after) for after in ("punctuation", "newline", "plain_space", "blank", "number", "cjk")
    } | {("number", after) for after in ("letter", "newline", "plain_space", "blank", "other", "punctuation", "cjk")}
    | {("cjk", after) for after in ("letter", "newline", "plain_space", "blank", "other", "punctuation", "number")},
}  # fmt: skip


class Cuts(Protocol):
    """Finds safe cuts of one tokenizer."""

    def last_before(self, text: Any, low: int, high: int) -> int | None:
        """The last cut in low < cut <= high, None if there is none within reach.

        `text` is a buffer; its bytes on both sides of `high` may be looked at.
        """
        ...


class CutSearch:
    """Searches a text backwards for a cut. See `Cuts`."""

    def __init__(
        self,
        literals: Iterable[bytes],
        allowed: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
        easy: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset()),
    ) -> None:
        """`allowed`: for code points, whether a cut between each two neighbours is safe, added tokens aside.

        `easy`: bytes before and behind a cut that are always safe, to be tried first.
        """
        self._literals, self._allowed, self._easy = tuple(literals), allowed, easy
        self.reach = max(map(len, self._literals), default=1) - 1

    def last_before(self, text: Any, low: int, high: int) -> int | None:
        """See `Cuts`."""
        floor = max(low, high - SEARCH_BYTES)
        first = max(0, floor - self.reach - 3)
        window = bytes(text[first : high + self.reach + 4])
        before, after = self._easy
        for cut in range(high - first, floor - first, -1) if before else ():
            near = window[cut - 1] in before and cut < len(window) and window[cut] in after
            if near and not self._in_literal(window, cut):
                return first + cut
        found = self._by_class(window, floor - first, high - first)
        return None if found is None else first + found

    def _in_literal(self, window: bytes, cut: int) -> bool:
        around = window[max(0, cut - self.reach) : cut + self.reach]
        middle = min(cut, self.reach)
        return any(self._crosses(around, literal, middle) for literal in self._literals)

    @staticmethod
    def _crosses(around: bytes, literal: bytes, cut: int) -> bool:
        at = around.find(literal)
        while at >= 0:
            if at < cut < at + len(literal):
                return True
            at = around.find(literal, at + 1)
        return False

    def _by_class(self, window: bytes, low: int, high: int) -> int | None:
        """The same for characters beyond ASCII; nothing is cut in text that is not UTF-8."""
        begin = next((i for i in range(min(4, len(window))) if window[i] & 0xC0 != 0x80), 0)
        try:
            chars = window[begin:].decode("utf-8", errors="strict")
        except UnicodeDecodeError as error:
            # The window may end inside a character; anything else is invalid.
            if error.end < len(window) - begin and error.reason != "unexpected end of data":
                return None
            chars = window[begin : begin + error.start].decode()
        points = np.array([ord(char) for char in chars], dtype=np.int64)
        if len(points) < 2:
            return None
        positions = begin + np.concatenate(([0], np.cumsum(_widths(points))))
        allowed = self._allowed(points)
        for i in np.flatnonzero(allowed)[::-1]:
            cut = int(positions[i + 1])
            if low < cut <= high and not self._in_literal(window, cut):
                return cut
        return None


class SafeCuts:
    """Cuts of a byte-level tokenizer: its pattern family, its added tokens, and whether it normalizes."""

    def __init__(self, family: str, literals: Iterable[bytes], normalizes: bool) -> None:
        """Raises `UnsupportedTokenizer` for a family whose cuts are not known."""
        if family not in _BOUNDARIES:
            raise UnsupportedTokenizer(f"no safe cuts are known for the pattern family {family!r}")
        self._family, self._normalizes = family, normalizes
        self._search = CutSearch(literals, self._allowed, (_ASCII_LETTER, _ASCII_AFTER))

    def last_before(self, text: Any, low: int, high: int) -> int | None:
        """See `Cuts`."""
        return self._search.last_before(text, low, high)

    @property
    def reach(self) -> int:
        """Bytes on either side of a cut that it depends on."""
        return self._search.reach

    def _allowed(self, points: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each pair of neighbours, whether a cut between them is safe."""
        names = FAMILY_CLASSES[self._family]
        table = np.zeros((len(names), len(names)), dtype=bool)
        for before, after in _BOUNDARIES[self._family]:
            table[names.index(before), names.index(after)] = True
        codes = family_classes(self._family)[points]
        allowed: NDArray[np.bool_] = table[codes[:-1], codes[1:]]
        if self._normalizes:
            allowed &= normal_form_classes()[points[1:]] == 0
        return allowed


def _widths(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """UTF-8 length of each code point."""
    return 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000).astype(np.int64)
