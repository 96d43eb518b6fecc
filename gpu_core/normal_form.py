"""Documents that may not be in normal form (NFC), rewritten so that the device can answer them without the quick check.

    document   Cafe◌́ <|im_end|> ◌̸a      added tokens are searched for in the raw text, each gap is normalized by itself
    rewritten  Café  <|im_end|> ◌̸a      the device encodes this; what it takes for added tokens is the same

It has the ids of the document if the added tokens that are found in it are those of the document, at the same places.

Gaps are normalized by Python's own Unicode database, which is older or newer than the reference's. Characters that one
of the two may not know are uncertain: `uncertain_characters`. A gap with such a character needs the reference's own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpu_core.classes import NOT_NORMAL, normal_form_classes
from gpu_core.spec import TokenizerSpec

Normalize = Callable[[str], str]
"""The reference's normalizer of one gap."""

MAX_MARKS = 64
"""Sorting marks takes the square of their number, so that a longer run of them is left to the CPU."""
_UNCERTAIN = 254
"""In the table of classes; no combining class has this number."""
_MANY_MARKS = bytes([1]) * (MAX_MARKS + 1)
_IS_MARK = bytes([0]) + bytes([1]) * 255
_INERT = ((0x3400, 0xA000), (0xAC00, 0xD7A4), (0x17000, 0x18B00), (0x20000, 0x2F800))
"""Ideographs, which nothing changes, and Hangul, which composes by a rule that all versions share."""
_LAST = 0x30000


class Rewriter:
    """Rewrites documents of one tokenizer whose only normalizer is NFC."""

    def __init__(self, spec: TokenizerSpec, normalize: Normalize | None = None) -> None:
        """Without `normalize`, documents with uncertain characters are not rewritten."""
        self._normalize = normalize
        self._classes = _classes()
        # The leftmost match, and of those that begin there the longest: alternatives are tried in order.
        tokens = sorted((token.content for token in spec.added_tokens), key=len, reverse=True)
        self._literal = re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None
        self._flagged = {
            token.content for token in spec.added_tokens if token.single_word or token.lstrip or token.rstrip
        }

    def rewrite(self, document: bytes) -> bytes | None:
        """A document with the same ids whose gaps are in normal form; None when there is none, or it is not certain."""
        try:
            text = document.decode()
        except UnicodeDecodeError:
            return None
        parts = self._split(text)
        if not self._flagged.isdisjoint(parts[1::2]):
            return None
        for i in range(0, len(parts), 2):
            gap = self._normal_form(parts[i])
            if gap is None:
                return None
            parts[i] = gap
        rewritten = "".join(parts)
        return rewritten.encode() if self._split(rewritten) == parts else None

    def _split(self, text: str) -> list[str]:
        """Gaps, and the added tokens between them."""
        return self._literal.split(text) if self._literal else [text]

    def _normal_form(self, gap: str) -> str | None:
        if gap.isascii():
            return gap
        values = self._classes[np.frombuffer(gap.encode("utf-32-le"), "<u4")]
        in_bytes = values.tobytes()
        # What has any class counts as a mark.
        if _MANY_MARKS in in_bytes.translate(_IS_MARK):
            return None
        if _UNCERTAIN in in_bytes:
            return self._normalize(gap) if self._normalize else None
        return _normalized(gap, values)


def passes_quick_check(text: str) -> bool:
    """Whether NFC certainly leaves the text alone: no doubtful character, and marks in canonical order."""
    if text.isascii():
        return True
    return not _is_doubtful(normal_form_classes()[np.frombuffer(text.encode("utf-32-le"), "<u4")]).any()


def _is_doubtful(values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Of each class of some text: a character that NFC may change, or a mark that is out of order."""
    doubtful: NDArray[np.bool_] = values == NOT_NORMAL
    before, after = values[:-1], values[1:]
    doubtful[1:] |= (after > 0) & (before > after)
    return doubtful


def _normalized(text: str, values: NDArray[np.uint8]) -> str:
    """NFC of a text with these classes. Nothing in it reaches back over a character that has none.

    So each run of characters with a class is normalized with the one before it, if there is anything doubtful in it.
    """
    classed = np.flatnonzero(values != 0)
    opens = np.flatnonzero(np.diff(classed, prepend=-2) > 1)
    doubtful = np.flatnonzero(_is_doubtful(values)[classed])
    runs = np.unique(np.searchsorted(opens, doubtful, side="right")) - 1
    begins = np.maximum(classed[opens[runs]] - 1, 0)
    ends = classed[np.append(opens, len(classed))[runs + 1] - 1] + 1
    parts: list[str] = []
    done, known = 0, _KnownForms()
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        parts += text[done:begin], known[text[begin:end]]
        done = end
    return "".join([*parts, text[done:]])


class _KnownForms(dict[str, str]):
    """NFC of short texts, of which a document has few different ones."""

    def __missing__(self, text: str) -> str:
        self[text] = form = unicodedata.normalize("NFC", text)
        return form


@cache
def uncertain_characters() -> frozenset[int]:
    """Code points on whose normal form this Python and the reference may differ.

    A version of Unicode changes nothing about the characters of earlier ones. So it is enough to find those that only
    one side knows: a class that the reference's table lacks, or a composition that came after Unicode 3.2, which is
    older than both.
    """
    classes = normal_form_classes()
    found: set[int] = {int(c) for c in np.flatnonzero(classes) if unicodedata.category(chr(c)) == "Cn"}
    for code in _candidates():
        char = chr(code)
        combining, decomposition = unicodedata.combining(char), unicodedata.decomposition(char)
        if combining and classes[code] not in {combining, NOT_NORMAL}:
            found.add(code)
        if not decomposition or decomposition.startswith("<"):
            continue
        if unicodedata.normalize("NFC", char) != char:
            if classes[code] != NOT_NORMAL:
                found.add(code)
        elif unicodedata.ucd_3_2_0.decomposition(char) != decomposition:
            first, second = (int(part, 16) for part in decomposition.split())
            # The pair composes for one side only; one of the two is new, too.
            is_old = unicodedata.ucd_3_2_0.category(chr(second)) != "Cn"
            found |= {code, first if is_old else second}
    return frozenset(found)


def _candidates() -> Iterator[int]:
    """Code points that may have a class or a decomposition."""
    borders = [0, *chain.from_iterable(_INERT), _LAST]
    for first, end in zip(borders[::2], borders[1::2], strict=True):
        for code in range(first, end):
            if not 0xD800 <= code < 0xE000:
                yield code


@cache
def _classes() -> NDArray[np.uint8]:
    """The quick check's class of each code point, or `_UNCERTAIN`."""
    table = normal_form_classes().copy()
    table[sorted(uncertain_characters())] = _UNCERTAIN
    return table
