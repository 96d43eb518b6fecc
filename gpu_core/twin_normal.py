"""The normalizing kernel's twin: the same text, segment by segment, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpu_core.classes import NOT_NORMAL, normal_form_classes
from gpu_core.normal_layout import MAX_GROWTH, MAX_PARTS, MAX_RESULT, MAX_SEGMENT
from gpu_core.normal_tables import read_decompositions

_LEADS, _VOWELS, _TAILS, _SYLLABLES = 0x1100, 0x1161, 0x11A7, 0xAC00
_N_LEADS, _N_VOWELS, _N_TAILS = 19, 21, 28


@dataclass(frozen=True, slots=True)
class Normalized:
    """What the kernel writes."""

    text: bytes
    starts: NDArray[np.uint32]
    """Where each document begins in it, and the end of the last."""
    flagged: list[bool]
    """Of each document, whether it needs the CPU."""


def normalize(documents: Sequence[bytes], literals: Sequence[bytes], capacity: int) -> Normalized:
    """See `kernels/normalize.cu`; `literals` are the tokenizer's added tokens."""
    letters, endings = frozenset(b"".join(literals)), frozenset(literal[-1] for literal in literals)
    results = [_rewrite(document, letters, endings) for document in documents]
    starts = np.cumsum([0, *(len(text) for text, _flagged in results)])
    if starts[-1] > capacity:
        return Normalized(b"", np.zeros(len(starts), np.uint32), [True] * len(documents))
    text = b"".join(text for text, _flagged in results)
    return Normalized(text, starts.astype(np.uint32), [flagged for _text, flagged in results])


def normal_form(codes: Sequence[int]) -> list[int]:
    """NFC of code points, by the device's tables."""
    return _compose(_decompose(codes))


def _rewrite(document: bytes, letters: frozenset[int], endings: frozenset[int]) -> tuple[bytes, bool]:
    """A document with all segments in normal form that can be brought there, and whether there are others."""
    parts: list[bytes] = []
    flagged = False
    for segment in _segments(list(_characters(document))):
        text = b"".join(part for part, _code in segment)
        codes = [code for _part, code in segment]
        if _is_doubtful(codes):
            result = _segment_form(text, codes, letters, endings)
            flagged |= result is None
            text = text if result is None else result
        parts.append(text)
    return b"".join(parts), flagged


def _characters(document: bytes) -> Iterator[tuple[bytes, int]]:
    """Characters with their code points; a byte that belongs to none by itself, with -1."""
    at = 0
    while at < len(document):
        lead = document[at]
        n_bytes = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        try:
            char = document[at : at + n_bytes].decode()
        except UnicodeDecodeError:
            yield document[at : at + 1], -1
            at += 1
        else:
            yield document[at : at + n_bytes], ord(char)
            at += n_bytes


def _segments(characters: list[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    """A character without a class and those with one that follow it; at the beginning there may be only these."""
    segment: list[tuple[bytes, int]] = []
    for character in characters:
        if segment and _class_of(character[1]) == 0:
            yield segment
            segment = []
        segment.append(character)
    if segment:
        yield segment


def _class_of(code: int) -> int:
    return int(normal_form_classes()[code]) if code >= 0 else 0


def _is_doubtful(codes: Sequence[int]) -> bool:
    before = 0
    for code in codes:
        own = _class_of(code)
        if own == NOT_NORMAL or (own and own < before):
            return True
        before = own
    return False


def _segment_form(text: bytes, codes: list[int], letters: frozenset[int], endings: frozenset[int]) -> bytes | None:
    """The normal form of a segment, or None when the document that it is in needs the CPU."""
    parts = _decompose(codes) if len(text) <= MAX_SEGMENT and codes[0] >= 0 else []
    if not 0 < len(parts) <= MAX_PARTS:
        return None
    composed = _compose(parts)
    new = composed[1:] if composed[0] == codes[0] else composed
    if not letters.isdisjoint(new) or (composed[0] != codes[0] and codes[0] in endings):
        return None
    result = "".join(map(chr, composed)).encode()
    return result if len(result) <= min(MAX_RESULT, MAX_GROWTH * len(text)) else None


def _decompose(codes: Sequence[int]) -> list[int]:
    """Canonical decomposition, marks in order."""
    parts: list[int] = []
    known = read_decompositions().parts
    for code in codes:
        index = code - _SYLLABLES
        if 0 <= index < _N_LEADS * _N_VOWELS * _N_TAILS:
            syllable, tail = divmod(index, _N_TAILS)
            parts += [_LEADS + syllable // _N_VOWELS, _VOWELS + syllable % _N_VOWELS, *[_TAILS + tail][: tail > 0]]
        else:
            parts += known.get(code, (code,))
    ordered: list[int] = []
    marks: list[int] = []
    for part in parts:
        if _combining(part):
            marks.append(part)
        else:
            ordered += [*sorted(marks, key=_combining), part]
            marks = []
    return ordered + sorted(marks, key=_combining)


def _combining(part: int) -> int:
    """Canonical combining class of what decomposes into itself."""
    return read_decompositions().marks.get(part, _class_of(part))


def _compose(parts: Sequence[int]) -> list[int]:
    """Canonical composition: each part with the last starter before it, unless another part stands between."""
    composed: list[int] = []
    starter, last = -1, 0
    for part in parts:
        own = _combining(part)
        if starter >= 0 and (len(composed) == starter + 1 or last < own):
            made = _pair(composed[starter], part)
            if made:
                composed[starter] = made
                continue
        if own == 0:
            starter = len(composed)
        last = own
        composed.append(part)
    return composed


@cache
def _pairs() -> dict[tuple[int, int], int]:
    return read_decompositions().pairs()


def _pair(first: int, second: int) -> int:
    """What two code points compose into, or 0."""
    lead, vowel, tail, syllable = first - _LEADS, second - _VOWELS, second - _TAILS, first - _SYLLABLES
    if 0 <= lead < _N_LEADS and 0 <= vowel < _N_VOWELS:
        return _SYLLABLES + (lead * _N_VOWELS + vowel) * _N_TAILS
    if 0 <= syllable < _N_LEADS * _N_VOWELS * _N_TAILS and syllable % _N_TAILS == 0 and 0 < tail < _N_TAILS:
        return first + tail
    return _pairs().get((first, second), 0)
