"""Documents as pieces that overlap, on their way through one replay and back.

    documents    xaaaaaaaaaaaay   bbbbbbbb
    text         xaaaaaa aaaaaa aaaaaay bbbb bbbb       pieces, one behind the other
    places       0       3      7       14   17         where each begins in the text of all documents

See `gpu_core.long_runs` for where a document is cut and why its pieces can be joined.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_core.encoding import Encoding
from gpu_core.execution import ExecutionContext
from gpu_core.join_layout import NO_SEAM, REFUSED, SHIFT_AT
from gpu_core.layout import MAX_PRETOKEN
from gpu_core.long_runs import LongRuns, NoSeam, Pieces

LOOKS = 4
"""Places of a document that are looked at before it is given to the device."""
_TOO_LONG = re.compile(
    b"|".join(b"%s{%d}" % (kind, MAX_PRETOKEN + 1) for kind in (rb"[A-Za-z]", rb"[ \t\r\n]", rb"[!-/:-@\[-`{-~]"))
)


def has_long_run(document: bytes | memoryview) -> bool:
    """Whether a pre-token that is too long for the device lies where a few quick looks fall."""
    n = len(document)
    if n <= LOOKS * MAX_PRETOKEN:
        return False
    return any(_TOO_LONG.match(document, n * (2 * k + 1) // (2 * LOOKS)) is not None for k in range(LOOKS))


class PieceBatch:
    """The pieces of some documents as one batch."""

    def __init__(self, documents: Sequence[bytes], pieces: Sequence[Pieces]) -> None:
        self._documents, self._pieces = documents, pieces
        self._lengths = [one.lengths for one in pieces]
        self.firsts = np.cumsum([0, *(len(one.starts) for one in pieces)])
        """Number of each document's first piece, and of all."""
        self.n_bytes = int(sum(int(lengths.sum()) for lengths in self._lengths))
        self.n_pieces = int(self.firsts[-1])
        self.document_starts = np.cumsum([0, *map(len, documents)])
        """Where each document begins in the text of all, and the end of the last."""

    def fill(self, context: ExecutionContext) -> None:
        """Write text, document starts and places of the pieces. Raises `OutOfDeviceMemory`."""
        places = context.piece_places()
        text = np.frombuffer(context.text, np.uint8)
        at = 0
        rows = zip(self._documents, self._pieces, self._lengths, self.firsts, self.document_starts, strict=False)
        for document, pieces, lengths, first, start in rows:
            end = at + int(lengths.sum())
            pieces.write(document, text[at:end])
            places[first : first + len(lengths)] = pieces.starts + start
            at = end
        context.document_starts[0] = 0
        np.cumsum(np.concatenate(self._lengths), out=context.document_starts[1 : self.n_pieces + 1], dtype=np.uint32)

    def failures(self, reports: NDArray[np.uint32]) -> dict[int, int]:
        """Documents that were not answered, by their place in the batch, with `NoSeam.shift` of each."""
        shifts: dict[int, int] = {}
        for piece in np.flatnonzero(reports).tolist():
            document = int(np.searchsorted(self.firsts, piece, side="right")) - 1
            report = int(reports[piece])
            if report == REFUSED:
                shifts[document] = 0
            elif report & NO_SEAM:
                shifts.setdefault(document, report >> SHIFT_AT)
        return shifts


def join_on_host(long_runs: LongRuns, encoding: Encoding, answer: Encoding, cut: dict[int, Pieces]) -> dict[int, int]:
    """Put documents into a result, from an answer with their pieces as documents.

    Returns `NoSeam.shift` of those that do not fit together, by their place in `cut`.
    """
    end, missed = 0, {}
    for place, (document, pieces) in enumerate(cut.items()):
        first, end = end, end + len(pieces.starts)
        if not answer.needs_cpu.keys().isdisjoint(range(first, end)):
            continue
        try:
            encoding.put(document, *long_runs.join(pieces, *answer.ids_of_several(first, end)))
        except NoSeam as error:
            missed[place] = error.shift
    return missed
