"""fastokens: bounded caches, releases the GIL, thread-safe. The default engine."""

from __future__ import annotations

from importlib.metadata import version

from fastokens._native import Tokenizer


class FastokensEngine:
    """One `fastokens` tokenizer, warmed up at load (its first call compiles the split pattern, about 0.1 s)."""

    name = "fastokens"
    version = version("fastokens")

    def __init__(self, text: str) -> None:
        self._encode_batch = Tokenizer.from_json_str(text).encode_batch_flat
        self._encode_batch(["warm up: été 1234"])

    def encode(self, document: str) -> bytes:
        ids: bytes = self._encode_batch([document])[0]
        return ids

    def guard(self, document: str) -> str | None:
        if document.isascii() or "'\u017f" not in document:
            return None
        return "long s after an apostrophe"
