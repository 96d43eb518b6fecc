"""The joining kernel's twin: the same results, piece by piece, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpu_core.join_layout import NO_SEAM, REFUSED, SEARCHED, SHIFT_AT

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class EncodedPieces:
    """What a replay over pieces leaves on the device, see `join_layout.JOIN_BATCH`."""

    ids: Words
    token_starts: Words
    """In the text of all pieces."""
    tokens: Words
    """Number of each piece's first token, and of all."""
    starts: Words
    """Where each piece begins in the text of all pieces, and the end of the last."""
    places: Words
    """Where each piece begins in the text of all documents."""
    reasons: Words
    """Of each piece why it needs the CPU, or 0."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What the kernel answers."""

    ids: Words
    token_starts: Words
    """In the text of all documents."""
    piece_tokens: Words
    """Number of the first token that each piece keeps, and of all."""
    reports: Words


def join_pieces(pieces: EncodedPieces) -> Joined:
    """See `kernels/join.cu`."""
    n_pieces = len(pieces.places)
    seams = [_seam(pieces, k) for k in range(n_pieces + 1)]
    kept = [np.arange(low[1], max(low[1], high[0])) for low, high in pairwise(seams)]
    places, starts = pieces.places.astype(np.int64), pieces.starts.astype(np.int64)
    shifted = [pieces.token_starts[tokens] + (places[k] - starts[k]) for k, tokens in enumerate(kept)]
    reports = np.array([seam[2] for seam in seams[:-1]], dtype=np.uint32)
    reports[np.flatnonzero(pieces.reasons[:n_pieces])] = REFUSED
    return Joined(
        pieces.ids[np.concatenate(kept)],
        np.concatenate(shifted).astype(np.uint32),
        np.cumsum([0, *map(len, kept)]).astype(np.uint32),
        reports,
    )


def _seam(pieces: EncodedPieces, k: int) -> tuple[int, int, int]:
    """First token behind the seam in the piece before, the same in this piece, and the report."""
    own = int(pieces.tokens[k])
    if k in {0, len(pieces.places)}:
        return own, own, 0
    before, start = int(pieces.starts[k - 1]), int(pieces.starts[k])
    shared = int(pieces.places[k - 1]) + start - before - int(pieces.places[k])
    if shared == 0:
        return own, own, 0
    borders = [*pieces.token_starts[: pieces.tokens[-1]].tolist(), int(pieces.starts[-1])]
    first, end = int(pieces.tokens[k - 1]), int(pieces.tokens[k + 1])
    known = {(borders[i] + shared, borders[i + 1] + shared, int(pieces.ids[i])): i for i in range(first, own)}
    for token in range(own, end):
        if borders[token] - start >= SEARCHED:
            break
        other = known.get((borders[token], borders[token + 1], int(pieces.ids[token])))
        if other is not None:
            return other + 1, token + 1, 0
    cut = [i for i in range(first, own) if borders[i] < start - shared]
    shift = start - shared - borders[cut[-1]] if cut else 0
    return own, own, NO_SEAM | shift << SHIFT_AT
