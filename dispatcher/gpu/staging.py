"""From the documents of a batch to the text of its slot: the one copy that the route makes of a text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dispatcher.gpu.group import Text
from dispatcher.gpu.model_queue import Batch

JOINED_BYTES = 4096
"""Documents of a shorter average are joined before they are copied: one copy costs less than many."""
STEP_BYTES = 1 << 20
"""A thread that has more to do fills a slot in steps of so much, about 100 us."""


def fill_shared(batch: Batch) -> None:
    """Write all documents of a shared batch, and where they begin."""
    slot = batch.slot
    if batch.n_documents == 1:
        group, numbers = batch.shares[0]
        slot.text[: batch.n_bytes] = group.documents[numbers[0] if numbers else 0]
        starts = slot.starts
        starts[0], starts[1] = 0, batch.n_bytes
        return
    documents, lengths = _texts(batch)
    ends = array("I", accumulate(lengths, initial=0))
    slot.starts[: len(ends)] = ends
    text = slot.text
    if batch.n_bytes < JOINED_BYTES * len(documents):
        text[: batch.n_bytes] = b"".join(documents)
    else:
        start = 0
        for document, end in zip(documents, ends[1:], strict=True):
            text[start:end] = document
            start = end


def fill_alone(batch: Batch, n_filled: int, n_bytes: int) -> int:
    """Write up to `n_bytes` more of a document that has the slot alone; how much of it is there now.

    Other threads run meanwhile: NumPy copies without the interpreter's lock.
    """
    piece, slot = batch.piece, batch.slot
    assert piece is not None
    if not n_filled:
        slot.document_starts[:2] = (0, batch.n_bytes)
    end = min(batch.n_bytes, n_filled + n_bytes)
    source = np.frombuffer(piece.group.documents[piece.document], np.uint8)
    target = np.frombuffer(slot.text, np.uint8)
    target[n_filled:end] = source[piece.start + n_filled : piece.start + end]
    return end


def _texts(batch: Batch) -> tuple[Sequence[Text], list[int]]:
    """The documents of a shared batch and their lengths, in order."""
    if len(batch.shares) == 1 and batch.shares[0][1] is None:
        group = batch.shares[0][0]
        return group.documents, group.lengths
    documents: list[Text] = []
    lengths: list[int] = []
    for group, numbers in batch.shares:
        if numbers is None:
            documents += group.documents
            lengths += group.lengths
        else:
            documents += [group.documents[number] for number in numbers]
            lengths += [group.lengths[number] for number in numbers]
    return documents, lengths
