"""The decimal kernel's twin: the same text, id by id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]


def decimal_text(ids: Words, document_tokens: Words) -> tuple[bytes, Words]:
    """All ids, each with a comma behind it, and where the text of each document begins, and the end of the last."""
    numbers = [b"%d," % token for token in ids.tolist()]
    starts = np.cumsum([0, *map(len, numbers)])
    return b"".join(numbers), starts[document_tokens].astype(np.uint32)


def write_decimals(ids: Words, document_tokens: Words, decimals: memoryview, document_decimals: Words) -> None:
    """What the kernel writes: text as far as there is room, and where it begins in any case."""
    text, starts = decimal_text(ids, document_tokens)
    n_bytes = min(len(text), len(decimals))
    decimals[:n_bytes] = text[:n_bytes]
    document_decimals[: len(starts)] = starts
