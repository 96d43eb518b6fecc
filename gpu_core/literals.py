"""Added tokens: which sets can be found at each byte on its own, and the bits that tell where one may begin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import MAX_LITERAL
from gpu_core.spec import AddedToken, TokenizerSpec

NEEDS_CPU = 1 << 31
"""Set in the id of an added token whose match depends on more than its bytes."""


def device_literals(spec: TokenizerSpec) -> dict[bytes, int]:
    """Literal -> id for the device. Raises `UnsupportedTokenizer` when a match could depend on matches before it.

    The reference first finds the tokens that are not `normalized` in the raw text, the leftmost and among these the
    longest, then the others in what is left. Where no literal can overlap another, both steps come to: at each byte,
    the longest.
    """
    literals = {token.content.encode(): token for token in spec.added_tokens}
    if spec.normalizers and any(token.normalized for token in spec.added_tokens):
        raise UnsupportedTokenizer("added tokens that are searched for in normalized text")
    longest = max(map(len, literals), default=0)
    if longest > MAX_LITERAL:
        raise UnsupportedTokenizer(f"an added token of {longest} bytes; the device finds up to {MAX_LITERAL}")
    if any(len(literal) < 2 for literal in literals):
        raise UnsupportedTokenizer("an added token of one byte")
    if _can_overlap(literals):
        raise UnsupportedTokenizer("added tokens that can overlap each other")
    if _mixed_prefixes(literals):
        raise UnsupportedTokenizer("an added token that begins with another one of different normalization")
    return {
        literal: token.id | (NEEDS_CPU if token.single_word or token.lstrip or token.rstrip else 0)
        for literal, token in literals.items()
    }


def bigram_bits(literals: dict[bytes, int]) -> NDArray[np.uint32]:
    """One bit for every pair of bytes that begins a literal: bit `first << 8 | second`, shape (2048,)."""
    bits = np.zeros(1 << 16, dtype=np.uint8)
    for literal in literals:
        bits[literal[0] << 8 | literal[1]] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _can_overlap(literals: dict[bytes, AddedToken]) -> bool:
    """Whether a literal can begin inside another one, or be part of it other than as its beginning."""
    prefixes = {literal[:n] for literal in literals for n in range(1, len(literal) + 1)}
    for literal in literals:
        for start in range(1, len(literal)):
            rest = literal[start:]
            if rest in prefixes or any(rest[:n] in literals for n in range(1, len(rest))):
                return True
    return False


def _mixed_prefixes(literals: dict[bytes, AddedToken]) -> bool:
    return any(
        literal[:n] in literals and literals[literal[:n]].normalized != token.normalized
        for literal, token in literals.items()
        for n in range(1, len(literal))
    )
