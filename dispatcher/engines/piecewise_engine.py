"""An engine that takes documents with very long pre-tokens in pieces, because its time grows with the pre-token.

    a megabyte of random letters, no blank        whole: 35 times a megabyte of books       in pieces: 10 times

The ids are those of the engine for the whole document, see `gpu_core.long_runs`.
"""

from __future__ import annotations

import re

import numpy as np

from dispatcher.engines.engine import CpuEngine
from gpu_core.bpe_file import read_entry_lengths
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.long_runs import OVERLAP, LongRuns, NoSeam, Pieces, can_be_cut, with_added_tokens
from gpu_core.spec import TokenizerSpec

SAMPLE_EVERY = 4096
"""Characters between two looks at a document. Every run of twice as many is seen; shorter ones than this stay whole."""
NARROW = 64
"""Bytes that pieces share in the first attempt: less work. The second one shares `OVERLAP`."""
PIECE_STEP = 1024
"""Bytes from one piece to the next: less is shared than on the device, whose pieces are short."""
_RUN = re.compile(r"[^\W\d_]{256}|\s{256}|(?:[^\w\s]|_){256}|\d{256}")


class PiecewiseEngine:
    """See `CpuEngine`; everything but `encode` is the engine's own."""

    def __init__(self, engine: CpuEngine, spec: TokenizerSpec, data: bytes) -> None:
        self.name, self.version, self.guard_digest = engine.name, engine.version, engine.guard_digest
        self.guard = engine.guard
        self._encode, self._encode_many = engine.encode, engine.encode_many
        self._spec = spec
        # Made at load: the first document that needs it would wait for the file to be read.
        self._long_runs = _long_runs(spec, data)

    def encode(self, document: str) -> bytes:
        """See `CpuEngine`."""
        if len(document) > SAMPLE_EVERY and _may_have_long_run(document):
            ids = self._in_pieces(document)
            if ids is not None:
                return ids
        return self._encode(document)

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """See `CpuEngine`."""
        if max(map(len, documents), default=0) > SAMPLE_EVERY and any(
            len(document) > SAMPLE_EVERY and _may_have_long_run(document) for document in documents
        ):
            return [self.encode(document) for document in documents]
        return self._encode_many(documents)

    def _in_pieces(self, document: str) -> bytes | None:
        """None if the document has no long run after all, or its pieces do not fit together."""
        # Marks of one piece must not compose with a character of another.
        if self._spec.normalizers and not document.isascii():
            return None
        text = document.encode()
        for long_runs in self._long_runs:
            shift = 0
            for _attempt in range(2):
                pieces = long_runs.cut(text, shift)
                if pieces is None:
                    return None
                try:
                    return self._joined(long_runs, pieces, text)
                except NoSeam as error:
                    shift = error.shift
                if not shift:
                    break
        return None

    def _joined(self, long_runs: LongRuns, pieces: Pieces, text: bytes) -> bytes:
        rows = self._encode_many([piece.decode() for piece in pieces.texts(text)])
        counts = np.array([len(row) // 4 for row in rows])
        ids, _starts = long_runs.join(pieces, np.frombuffer(b"".join(rows), np.uint32), counts)
        return ids.tobytes()


def _long_runs(spec: TokenizerSpec, data: bytes) -> list[LongRuns]:
    """One for each overlap; none for a tokenizer whose pre-tokens cannot be cut."""
    if not can_be_cut(spec) or spec.normalizers not in {(), ("NFC",)}:
        return []
    try:
        lengths = read_entry_lengths(data, spec.max_id + 1)
    except UnsupportedTokenizer:
        return []
    lengths = with_added_tokens(spec, lengths)
    made = [LongRuns(spec, lengths, overlap, SAMPLE_EVERY, PIECE_STEP) for overlap in (NARROW, OVERLAP)]
    return [long_runs for long_runs in made if long_runs.is_exact]


def _may_have_long_run(document: str) -> bool:
    look = _RUN.match
    return any(look(document, at) is not None for at in range(0, len(document), SAMPLE_EVERY))
