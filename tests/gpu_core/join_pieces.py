"""Pieces that overlap, with tokens that nobody's tokenizer made: for the joining kernel and its twin."""

from __future__ import annotations

import random

import numpy as np

from gpu_core.twin_join import EncodedPieces


def random_pieces(rng: random.Random, n_documents: int, n_pieces: int, strange: float) -> EncodedPieces:
    """Documents of so many pieces each. That part of the tokens differs; a piece is refused now and then."""
    ids: list[int] = []
    token_starts: list[int] = []
    tokens, starts, places, reasons = [0], [0], [], []
    ahead = 0
    for _document in range(n_documents):
        lengths = [rng.choice((1, 2, 3, 4, 8, 40, 90)) for _ in range(n_pieces * 20)]
        borders = np.cumsum([0, *lengths]).tolist()
        step = borders[-1] // n_pieces
        cuts = [(k * step, borders[-1] if k == n_pieces - 1 else (k + 1) * step + 192) for k in range(n_pieces)]
        for begin, end in cuts:
            end = min(end, borders[-1])
            own = sorted({begin, *(at for at in borders if begin < at < end and rng.random() >= strange)})
            ids += [at % 1000 if rng.random() >= strange else 1000 for at in own]
            token_starts += [at - begin + starts[-1] for at in own]
            tokens.append(len(ids))
            places.append(ahead + begin)
            starts.append(starts[-1] + end - begin)
            reasons.append(rng.choice((1, 3)) if rng.random() < strange / 4 else 0)
        ahead += borders[-1]
    words = [np.array(values, dtype=np.uint32) for values in (ids, token_starts, tokens, starts, places, reasons)]
    return EncodedPieces(*words)
