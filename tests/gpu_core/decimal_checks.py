"""Ids as decimal numbers from a device, against the twin's of the same ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_core.encoder import Encoder
from gpu_core.encoding import Encoding, Lease
from gpu_core.twin_decimal import decimal_text

POISON = 0xFFFFFFFF
N_TURNS = 3
"""Replays take turns with two places for their header."""


def wrong_decimals(encoder: Encoder, batch: list[bytes]) -> tuple[int, list[str]]:
    """How many documents were compared, and a line about each that differs. Ids are those of a replay without."""
    n_bytes = sum(map(len, batch))
    lease = encoder.lease(n_bytes, len(batch))
    context: Any = lease.context
    context.text[:n_bytes] = b"".join(batch)
    context.document_starts[: len(batch) + 1] = np.cumsum([0, *map(len, batch)])
    plain = encoder.replay(lease, n_bytes, len(batch))
    tokens = context.document_tokens[: len(batch) + 1].copy()
    ids = context.ids[: tokens[-1]].copy()
    text, words = decimal_text(ids, tokens)
    starts: list[int] = words.tolist()
    wrong: list[str] = []
    for _ in range(N_TURNS):
        epoch = context.epoch
        encoding = _replayed(encoder, lease, n_bytes, len(batch))
        where = f"{len(batch)} documents, {n_bytes} bytes"
        # Of several reasons, a document has the one that was written last.
        if encoding.needs_cpu.keys() != plain.needs_cpu.keys():
            wrong.append(f"decimals: other documents for the CPU, {where}")
        if not np.array_equal(context.ids[: len(ids)], ids) or not np.array_equal(
            context.document_tokens[: len(tokens)], tokens
        ):
            wrong.append(f"decimals: other ids, {where}")
        if not np.array_equal(context.document_decimals[: len(starts)], starts):
            wrong.append(f"decimals: documents begin elsewhere, {where}")
        n_written = min(len(text), len(context.decimals))
        if bytes(context.decimals[:n_written]) != text[:n_written]:
            wrong.append(f"decimals: other text, {where}")
        # The text of a second replay lies on that of the first one.
        if context.epoch == epoch + 1 and any(context.decimals[n_written : n_written + 64]):
            wrong.append(f"decimals: more text than there is, {where}")
        for i in range(len(batch)):
            found = encoding.decimals(i)
            fits = i not in plain.needs_cpu and starts[i + 1] <= len(context.decimals)
            if found != (text[starts[i] : max(starts[i], starts[i + 1] - 1)] if fits else None):
                wrong.append(f"decimals: document {i} of {where}")
    lease.release()
    return N_TURNS * len(batch), wrong


def _replayed(encoder: Encoder, lease: Lease, n_bytes: int, n_documents: int) -> Encoding:
    """One replay over what lies in the context, on results that were poisoned."""
    context = lease.context
    context.ids[:n_bytes] = POISON
    context.document_tokens[: n_documents + 1] = context.document_decimals[: n_documents + 1] = POISON
    n_cleared = min(len(context.decimals), 11 * n_bytes + 64)
    context.decimals[:n_cleared] = bytes(n_cleared)
    return encoder.replay(lease, n_bytes, n_documents, decimals=True)
