"""Engines that fail in every way an engine can."""

from __future__ import annotations

from dispatcher.engines.reference_engine import ReferenceEngine
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec


class PanicException(BaseException):
    """Looks like what PyO3 raises for a panic of native code: no `Exception`."""


class FaultyEngine:
    """Loads, then raises `error` on each document that contains `trigger`; else answers no ids."""

    name = "named"
    version = "0"
    guard_digest = ""

    def __init__(self, text: str = "", spec: TokenizerSpec | None = None) -> None:
        self.error: BaseException = RuntimeError("a fault of a test")
        self.trigger = ""

    def encode(self, document: str) -> bytes:
        """No ids, or the fault."""
        if self.trigger in document:
            raise self.error
        return b""

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """One after the other."""
        return [self.encode(document) for document in documents]

    def guard(self, document: str) -> str | None:
        """Guards nothing."""
        return None


class WrongEngine(FaultyEngine):
    """Answers each document with the same id."""

    def encode(self, document: str) -> bytes:
        """One id."""
        return b"\1\0\0\0"


class MixingEngine(ReferenceEngine):
    """Right about one document, but mixes up several."""

    def __init__(self, text: str = "", spec: TokenizerSpec | None = None) -> None:
        super().__init__(text)

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """The answers in the wrong order."""
        return super().encode_many(documents)[::-1]


class RefusingLoad(FaultyEngine):
    """Refuses every file."""

    def __init__(self, text: str = "", spec: TokenizerSpec | None = None) -> None:
        raise UnsupportedTokenizer("because of a test")


class PanickingLoad(FaultyEngine):
    """Panics on every file."""

    def __init__(self, text: str = "", spec: TokenizerSpec | None = None) -> None:
        raise PanicException("a panic of a test")
