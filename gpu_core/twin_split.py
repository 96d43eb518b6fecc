"""Plain twin of the classify and split stages: one boolean per byte, no bit tricks. The kernels are tested against it.

    text     d  o  n  '  t  _  w  a  i  t  \\n \\n _  x        (_ = plain space)
    class    L  L  L  O  L  P  L  L  L  L  E  E  P  L
    start    1  0  0  1  0  1  0  0  0  0  1  0  1  0         cl100k: don | 't | _wait | \\n\\n | _x

A class mask covers all bytes of its characters, so "the previous character" is the previous byte. A border is a byte
before which nothing is seen: the first byte of a document, and the first byte after an added token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_core.classes import FAMILY_CLASSES, family_classes

Mask = NDArray[np.bool_]

ONE_LETTER = frozenset(b"stmd")
TWO_LETTERS = (b"re", b"ve", b"ll")
LONG_S = "\u017f".encode()
ASCII_PUNCTUATION = frozenset(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True, slots=True)
class Classified:
    """A text by class: `codes[i]` indexes `FAMILY_CLASSES`, `lead[i]` tells that byte i begins a character."""

    text: bytes
    codes: NDArray[np.uint8]
    lead: Mask
    valid: bool
    """Whether the text is UTF-8."""


def classify(text: bytes, family: str) -> Classified:
    """Class of the character that each byte belongs to; of invalid UTF-8 only the fact is known."""
    lead = (np.frombuffer(text, np.uint8) & 0xC0) != 0x80
    try:
        points = np.array([ord(char) for char in text.decode()], dtype=np.int64)
    except UnicodeDecodeError:
        return Classified(text, np.zeros(len(text), np.uint8), lead, False)
    by_char = family_classes(family)[points] if len(points) else np.zeros(0, np.uint8)
    return Classified(text, by_char[np.cumsum(lead) - 1], lead, True)


def split(classified: Classified, border: Mask, family: str) -> Mask:
    """First bytes of pre-tokens.

    `border[i]`: nothing before byte i is seen. Bytes of added tokens have class 0 and are no starts.
    """
    return {"cl100k": _cl100k, "qwen2": _cl100k, "gpt2": _gpt2, "deepseek_v3": _deepseek}[family](
        _Masks(classified, border, family)
    )


class _Masks:
    """Class masks by name, and the two neighbours that respect borders."""

    def __init__(self, classified: Classified, border: Mask, family: str) -> None:
        self.text, self.lead, self.border, self.family = classified.text, classified.lead, border, family
        for code, name in enumerate(FAMILY_CLASSES[family]):
            setattr(self, name, classified.codes == code)
        self.newline: Mask
        self.letter: Mask
        self.number: Mask
        self.plain_space: Mask
        self.other: Mask
        self.blank: Mask
        self.punctuation: Mask
        self.cjk: Mask
        self.blanks: Mask = self.plain_space | self.blank

    def before(self, mask: Mask) -> Mask:
        """Whether the byte before has the property, and is seen."""
        return np.concatenate(([False], mask[:-1])) & ~self.border

    def last_byte_before(self, mask: Mask) -> Mask:
        """Whether the byte after has the property, and sees this one."""
        return np.concatenate(((mask & ~self.border)[1:], [False]))

    def lead_of(self, mask: Mask) -> Mask:
        """First bytes of the characters whose last byte is in the mask."""
        result = np.zeros_like(mask)
        for i in np.flatnonzero(mask):
            while not self.lead[i]:
                i -= 1
            result[i] = True
        return result

    def run_after(self, members: Mask, seeds: Mask) -> Mask:
        """Members that follow a seed in an unbroken run of members; a seed is a member itself."""
        result = np.zeros_like(members)
        for i in range(len(members)):
            result[i] = members[i] and (seeds[i] or (i > 0 and result[i - 1] and not self.border[i]))
        return result

    def newline_ahead(self) -> Mask:
        """Blanks with a newline later in the same run of white space."""
        result = np.zeros_like(self.blanks)
        for i in range(len(result) - 2, -1, -1):
            result[i] = self.blanks[i] and not self.border[i + 1] and (self.newline[i + 1] or result[i + 1])
        return result

    def contractions(self, apostrophes: Mask, fold: bool) -> tuple[Mask, Mask]:
        """Bytes of the letters of a contraction after its apostrophe, and bytes right after a contraction."""
        tail, after = np.zeros_like(apostrophes), np.zeros(len(apostrophes) + 1, dtype=bool)
        for i in np.flatnonzero(apostrophes):
            letters = self.text[i + 1 : i + 3].lower() if fold else self.text[i + 1 : i + 3]
            length = 1 if letters[:1] and letters[0] in ONE_LETTER else 0
            if letters in TWO_LETTERS or (fold and letters == LONG_S):
                length = 2
            if length and not self.border[i + 1 : i + 1 + length].any():
                tail[i + 1 : i + 1 + length] = True
                after[i + 1 + length] = True
        return tail, after[:-1] & ~self.border


def digit_groups(lead: Mask, number: Mask, border: Mask, group: int) -> Mask:
    """Digits at which a group begins: every `group`-th of each run."""
    result, phase = np.zeros_like(number), 0
    for i in range(len(number)):
        if not number[i] or border[i]:
            phase = 0
        if number[i] and lead[i]:
            result[i] = phase == 0
            phase = (phase + 1) % group
    return result


def _white_space(m: _Masks, solid: Mask, claimed: Mask) -> Mask:
    """Starts of blanks: after something solid, after a run's last newline, the last blank before something solid."""
    last = m.lead_of(m.blanks & m.last_byte_before(solid))
    after_newline = m.before(m.newline) & (m.before(claimed) | ~m.newline_ahead())
    return m.lead & m.blanks & (m.before(solid) | after_newline | (last & m.before(m.blanks)))


def _cl100k(m: _Masks) -> Mask:
    solid = m.letter | m.number | m.other
    claimed = m.run_after(m.newline, m.newline & m.before(m.other))
    alone = m.other & m.lead & ~m.before(m.other | m.plain_space)
    alone_bytes = m.run_after(m.other & (alone | ~m.lead), alone)
    apostrophe = alone & (np.frombuffer(m.text, np.uint8) == 0x27)
    tail, after = m.contractions(apostrophe, fold=True)
    after_text = m.before(m.number | m.newline) | (m.before(m.other) & ~m.before(alone_bytes)) | after
    return (
        digit_groups(m.lead, m.number, m.border, 3 if m.family == "cl100k" else 1)
        | (m.letter & m.lead & ~tail & after_text)
        | alone
        | (m.newline & m.before(m.letter | m.number))
        | _white_space(m, solid, claimed)
        | (m.border & (solid | m.newline | m.blanks))
    )


def _gpt2(m: _Masks) -> Mask:
    white = m.blanks | m.newline
    solid = m.letter | m.number | m.other
    apostrophe = m.other & ~m.before(m.other | m.plain_space) & (np.frombuffer(m.text, np.uint8) == 0x27)
    tail, after = m.contractions(apostrophe, fold=False)
    last = m.lead_of(white & m.last_byte_before(solid))
    return m.lead & (
        (m.letter & ~tail & (after | ~m.before(m.letter | m.plain_space)))
        | (m.number & ~m.before(m.number | m.plain_space))
        | (m.other & ~m.before(m.other | m.plain_space))
        | (white & (~m.before(white) | last))
    )


def _deepseek(m: _Masks) -> Mask:
    digits = digit_groups(m.lead, m.number, m.border, 3)
    # What stands before a digit group, a change to or from CJK, or a change from digits is not seen.
    m.border = m.border | digits | (m.before(m.number) & ~m.number) | (m.before(m.cjk) != (m.cjk & ~m.border))
    byte = np.frombuffer(m.text, np.uint8)
    a_to_z = ((byte | 0x20) >= 0x61) & ((byte | 0x20) <= 0x7A)
    punctuation = np.isin(byte, list(ASCII_PUNCTUATION))
    solid = m.letter | m.punctuation | m.other
    claimed = m.run_after(m.newline, m.newline & m.before(m.punctuation))
    tail = m.run_after(a_to_z, a_to_z & m.before(punctuation & ~m.before(m.punctuation | m.plain_space)))
    before_letter = m.lead_of(m.other & m.last_byte_before(m.letter))
    return (
        (m.lead & m.letter & ~tail & m.before(m.punctuation | m.newline | tail))
        | (m.lead & m.punctuation & ~m.before(m.punctuation | m.plain_space))
        | (m.newline & m.before(m.letter | m.other))
        | (m.lead & m.other & (~m.before(m.other) | before_letter))
        | _white_space(m, solid, claimed)
        | (m.border & (solid | m.newline | m.blanks | m.number | m.cjk))
    )
