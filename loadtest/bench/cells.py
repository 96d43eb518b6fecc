"""What is timed: sizes and batches of documents, cut from each corpus so that no two overlap."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer

from loadtest.bench.contender import Batch
from loadtest.texts import made_words

SAMPLE_BYTES = 200_000
MAX_BATCHES = 20
MAX_TEXT_TOKENS = 1_200_000
"""In all batches of a cell: the reference has to encode them, too."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Batches of one corpus, size and number of documents; `warm_up` is other text of the same size."""

    corpus: str
    n_tokens: int
    """Of one document, about."""
    n_documents: int
    batches: list[Batch]
    warm_up: Batch


def bytes_per_token(reference: Tokenizer, text: bytes) -> float:
    """Bytes of a corpus that become one token, measured on its beginning."""
    sample = text[:SAMPLE_BYTES].decode("utf-8", "ignore")
    return len(sample.encode()) / max(1, len(reference.encode(sample, add_special_tokens=False).ids))


def make_cell(
    corpus: str, text: bytes, n_tokens: int, n_documents: int, ratio: float, max_batches: int = MAX_BATCHES
) -> Cell | None:
    """Batches of documents that follow each other in the corpus; None when not one fits into it."""
    size = max(1, int(n_tokens * ratio))
    fitting = len(text) // (size * n_documents)
    n_batches = min(fitting, max_batches, max(1, MAX_TEXT_TOKENS // (n_tokens * n_documents)))
    if not n_batches:
        return None
    # Spread over the corpus, so that a cell does not depend on one place in it.
    step = len(text) // n_batches
    batches = [_batch(text, k * step, size, n_documents) for k in range(n_batches)]
    warm_up = made_words(size * n_documents, 99)
    return Cell(corpus, n_tokens, n_documents, batches, _batch(warm_up, 0, size, n_documents))


def _batch(text: bytes, start: int, size: int, n_documents: int) -> Batch:
    pieces = [text[start + k * size : start + (k + 1) * size].decode("utf-8", "ignore") for k in range(n_documents)]
    return Batch(pieces, [piece.encode() for piece in pieces])
