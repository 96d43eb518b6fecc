"""gigatoken: the second engine, behind guards. Its faults and their remedies are in docs/engines.md."""

from __future__ import annotations

import logging
import threading
from functools import cache
from importlib.metadata import version
from typing import Any

from gigatoken.gigatoken_rs import PadTruncate, SentencePieceTokenizer, load_hf_json

from dispatcher.engines.code_points import CodePoints, read_code_points
from dispatcher.engines.engine import is_fault, reason_of
from dispatcher.engines.memory import resident_bytes
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec

log = logging.getLogger("sidetok.engines")

LOOK_AFTER_CHARS = 16 << 20
"""Input after which the memory of the process is looked at. Unique text costs about 12 bytes of cache a byte."""
MAX_GROWTH_BYTES = 256 << 20
"""Growth of the process since the first load that makes a look rebuild the instance."""
HELD_CHARS = 2048
"""SentencePiece documents up to this length hold the GIL (below 0.1 ms): the other call takes 0.2 ms longer."""
SEQUENTIAL_CHARS = 512 << 10
"""Longer documents may be over 2 MiB, where the library would start threads of its own."""
BATCH_CHARS, BATCH_DOCUMENTS = 2048, 256
"""Documents up to this length are encoded so many in one call: what the library pads them with stays below 2 MiB."""


@cache
def guarded_code_points() -> CodePoints:
    """The code points that the library classifies, composes or orders by a newer Unicode than the reference."""
    return read_code_points("gigatoken_guard.txt")


class GigatokenEngine:
    """One `gigatoken` tokenizer whose instance is replaced before its caches, which never shrink, hold too much."""

    name = "gigatoken"
    version = version("gigatoken")
    guard_digest = guarded_code_points().digest

    def __init__(
        self,
        text: str,
        spec: TokenizerSpec,
        *,
        look_after_chars: int = LOOK_AFTER_CHARS,
        max_growth_bytes: int = MAX_GROWTH_BYTES,
    ) -> None:
        """Load the text of a tokenizer.json. Raises `UnsupportedTokenizer` with the reason."""
        if any(token.single_word for token in spec.added_tokens):
            raise UnsupportedTokenizer("it ignores the flag single_word of added tokens")
        if spec.normalizers and any(token.normalized for token in spec.added_tokens):
            raise UnsupportedTokenizer("it searches normalized added tokens in the raw text")
        self.n_rebuilds = 0
        self._look_after_chars = look_after_chars
        self._max_growth_bytes = max_growth_bytes
        self._guarded = guarded_code_points().in_text
        self._options = PadTruncate(0)
        self._data = text.encode()
        self._backend = self._load()
        self._max_held_chars = HELD_CHARS if isinstance(self._backend, SentencePieceTokenizer) else 0
        self._resident_at_load = resident_bytes()
        self._n_unseen_chars = 0
        self._lock = threading.Lock()
        self._rebuilding: threading.Thread | None = None

    def encode(self, document: str) -> bytes:
        """See `CpuEngine`."""
        # This call releases the GIL, `encode` does not. It keeps its backend alive when a rebuild replaces it.
        n_chars = len(document)
        if n_chars <= self._max_held_chars:
            rows = self._backend.encode(document)
        else:
            parallel = n_chars < SEQUENTIAL_CHARS
            rows, _ = self._backend.encode_batch_padded([document], self._options, parallel=parallel)
        self._count(n_chars)
        ids: bytes = rows.tobytes()
        return ids

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """See `CpuEngine`. Documents beside a long one go alone: the library pads a batch to its longest document."""
        ids: list[bytes] = []
        for start in range(0, len(documents), BATCH_DOCUMENTS):
            batch = documents[start : start + BATCH_DOCUMENTS]
            if len(batch) > 1 and max(map(len, batch)) <= BATCH_CHARS:
                ids += self._encode_batch(batch)
            else:
                ids += [self.encode(document) for document in batch]
        return ids

    def _encode_batch(self, documents: list[str]) -> list[bytes]:
        # Not in parallel: several documents would begin to use threads of the library's own.
        rows, counts = self._backend.encode_batch_padded(documents, self._options, parallel=False)
        self._count(sum(map(len, documents)))
        n_bytes = 4 * rows.shape[1]
        if not n_bytes:
            return [b""] * len(documents)
        ids: bytes = rows.tobytes()
        places = zip(range(0, len(ids), n_bytes), (4 * counts).tolist(), strict=True)
        return [ids[place : place + length] for place, length in places]

    def guard(self, document: str) -> str | None:
        """See `CpuEngine`."""
        return "unicode_version" if self._guarded(document) else None

    def settle(self) -> None:
        """Wait for a rebuild that runs in the background."""
        if (thread := self._rebuilding) is not None:
            thread.join()

    def _count(self, n_chars: int) -> None:
        with self._lock:
            self._n_unseen_chars += n_chars
            if self._n_unseen_chars >= self._look_after_chars:
                self._look()

    def _look(self) -> None:
        """Start a rebuild when the process has grown; the old instance serves until the new one is warm."""
        self._n_unseen_chars = 0
        if self._rebuilding is None and resident_bytes() - self._resident_at_load > self._max_growth_bytes:
            self._rebuilding = threading.Thread(target=self._rebuild, name="sidetok-rebuild", daemon=True)
            self._rebuilding.start()

    def _rebuild(self) -> None:
        try:
            self._backend = self._load()
            self.n_rebuilds += 1
        except UnsupportedTokenizer as error:
            log.error("gigatoken could not be rebuilt and keeps its memory: %s", error)
        finally:
            self._rebuilding = None

    def _load(self) -> Any:
        try:
            backend = load_hf_json(self._data)
            backend.encode_batch_padded(["Warm up: d\u00e9j\u00e0 vu 1234\n"], self._options, parallel=True)
        except BaseException as error:
            if not is_fault(error):
                raise
            raise UnsupportedTokenizer(reason_of(error)) from None
        return backend
