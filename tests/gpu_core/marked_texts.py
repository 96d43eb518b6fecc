"""Documents full of marks, of characters that compose or decompose, and of bytes that are no UTF-8."""

from __future__ import annotations

import random

from gpu_core.normal_tables import read_decompositions

LITERALS = (b"<|end|>", b"</s>", b"abc", b"K9")
_PLAIN = ("a", "e", "o", "z", "=", "<", " ", "\n", "é", "中", "한", "😀", "ệ", "<|end|>", "</s>", "abc", "K9")
_MARKS = tuple(
    map(
        chr,
        (0x300, 0x301, 0x302, 0x308, 0x323, 0x327, 0x338, 0x334, 0x31B, 0x345, 0x5B0, 0x5BC, 0x93C, 0x3099, 0x1D165),
    )
)
_DECOMPOSING = tuple(read_decompositions().parts)
_STRANGE = tuple(
    "\u212a\u037e\u1fef\u212b\u0344\u0958\u09be\u0bbe\u2adc\ufb2c\U0001d160\U0001d15e\uf900\u0340\u1f82\u1e9b"
)
_JAMO = ("\u1100", "\u1161", "\u1162", "\u11a8", "\u11c2", "\u11a7", "가", "각", "힣")
_BROKEN = (b"\xff", b"\xcc", b"\x81", b"\xe0\xa4", b"\xf0\x9d\x85", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80")


def random_document(rng: random.Random, n_parts: int, broken: float = 0.0) -> bytes:
    """So many characters, of kinds that change from document to document; that part of them is no UTF-8."""
    weights = [rng.random() ** 2 for _ in range(8)]
    parts = [_part(rng, kind).encode() for kind in rng.choices(range(8), weights, k=n_parts)]
    return b"".join(rng.choice(_BROKEN) if rng.random() < broken else part for part in parts)


def random_marked_text(rng: random.Random, literals: list[str]) -> str:
    """A short text, with added tokens in whole and in part."""
    parts = [_part(rng, rng.randrange(8)) for _ in range(rng.randrange(1, 20))]
    for _ in range(rng.randrange(4) if literals else 0):
        literal = rng.choice(literals)
        cut = rng.choice((len(literal), rng.randrange(len(literal)) + 1))
        parts.insert(rng.randrange(len(parts) + 1), literal[:cut])
    return "".join(parts)


def _part(rng: random.Random, kind: int) -> str:
    if kind < 4:
        return rng.choice((_PLAIN, _MARKS, _STRANGE, _JAMO)[kind])
    if kind == 4:
        return chr(rng.choice(_DECOMPOSING))
    return ("=\u0338", "a" * rng.randrange(40), "\u0301" * rng.randrange(8))[kind - 5]
