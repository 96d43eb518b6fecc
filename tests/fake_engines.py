"""Engines that fail in every way an engine can."""

from __future__ import annotations

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

    def guard(self, document: str) -> str | None:
        """Guards nothing."""
        return None


class WrongEngine(FaultyEngine):
    """Answers each document with the same id."""

    def encode(self, document: str) -> bytes:
        """One id."""
        return b"\1\0\0\0"


class RefusingLoad(FaultyEngine):
    """Refuses every file."""

    def __init__(self, text: str = "", spec: TokenizerSpec | None = None) -> None:
        raise UnsupportedTokenizer("because of a test")


class PanickingLoad(FaultyEngine):
    """Panics on every file."""

    def __init__(self, text: str = "", spec: TokenizerSpec | None = None) -> None:
        raise PanicException("a panic of a test")
