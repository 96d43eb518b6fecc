"""Added tokens: what the device finds at each byte on its own, and the bits that tell where one may begin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import MAX_LITERAL
from gpu_core.spec import AddedToken, TokenizerSpec

NEEDS_CPU = 1 << 31
"""Set in the id of an added token whose match depends on more than its bytes."""


def device_literals(spec: TokenizerSpec) -> dict[bytes, int]:
    """Literal -> id for the device. Raises `UnsupportedTokenizer` when a document cannot show whether a match is exact.

    The reference first finds the tokens that are not `normalized` in the raw text, the leftmost and among these the
    longest, then the others in what is left. The device takes at each byte the longest. Where no two of these share a
    byte, both come to the same; where two do, it sends the document to the CPU.
    """
    literals = {token.content.encode(): token for token in spec.added_tokens}
    if spec.normalizers and any(token.normalized for token in spec.added_tokens):
        raise UnsupportedTokenizer("added tokens that are searched for in normalized text")
    longest = max(map(len, literals), default=0)
    if longest > MAX_LITERAL:
        raise UnsupportedTokenizer(f"an added token of {longest} bytes; the device finds up to {MAX_LITERAL}")
    if _mixed_prefixes(literals):
        raise UnsupportedTokenizer("an added token that begins with another one of different normalization")
    return {
        literal: token.id | (NEEDS_CPU if token.single_word or token.lstrip or token.rstrip else 0)
        for literal, token in literals.items()
    }


def bigram_bits(literals: dict[bytes, int]) -> NDArray[np.uint32]:
    """One bit for every pair of bytes at which a literal may begin: bit `first << 8 | second`, shape (2048,)."""
    bits = np.zeros(1 << 16, dtype=np.uint8)
    for literal in literals:
        first = literal[0] << 8
        if len(literal) == 1:
            bits[first : first + 256] = 1
        else:
            bits[first | literal[1]] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _mixed_prefixes(literals: dict[bytes, AddedToken]) -> bool:
    return any(
        literal[:n] in literals and literals[literal[:n]].normalized != token.normalized
        for literal, token in literals.items()
        for n in range(1, len(literal))
    )
