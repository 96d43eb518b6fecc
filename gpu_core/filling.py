"""Documents on their way into the pinned memory of a context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpu_core.execution import ExecutionContext

JOINED_BYTES = 2048
"""Documents of a shorter average are joined before they are copied: one copy costs less than many."""
Lengths = list[int] | NDArray[np.uint32]
MANY = 256
"""So many documents are worth an array of their lengths."""


def lengths_of(documents: Sequence[bytes | memoryview]) -> Lengths:
    """Bytes of each: a list of few, an array of many."""
    if len(documents) < MANY:
        return [len(document) for document in documents]
    return np.fromiter(map(len, documents), np.uint32, len(documents))


def fill(context: ExecutionContext, documents: Sequence[bytes | memoryview], lengths: Lengths) -> None:
    """Copy documents; `lengths` as `lengths_of` gives them."""
    if len(documents) == 1:
        context.document_starts[0], context.document_starts[1] = 0, len(documents[0])
        context.text[: len(documents[0])] = documents[0]
        return
    n = len(documents)
    if isinstance(lengths, list):
        ends = list(accumulate(lengths, initial=0))
        context.document_starts[: n + 1] = ends
        n_bytes = ends[-1]
    else:
        context.document_starts[0] = 0
        np.cumsum(lengths, out=context.document_starts[1 : n + 1], dtype=np.uint32)
        n_bytes = context.document_starts.item(n)
    if n_bytes < JOINED_BYTES * n:
        context.text[:n_bytes] = b"".join(documents)
        return
    at = 0
    for document in documents:
        end = at + len(document)
        context.text[at:end] = document
        at = end


def packed_starts(document_starts: ArrayLike, n_bytes: int) -> NDArray[np.uint32]:
    """Where documents of one buffer begin, and its end. Raises `ValueError` if they do not rise from 0 to `n_bytes`."""
    starts = np.asarray(document_starts)
    if starts.ndim != 1 or not len(starts) or starts.dtype.kind not in "ui":
        raise ValueError("document starts are whole numbers, and the end of the last document")
    if starts[0] != 0 or starts[-1] != n_bytes or (starts[1:] < starts[:-1]).any():
        raise ValueError("document starts rise from 0 to the length of the text")
    return starts.astype(np.uint32, copy=False)
