"""The one interface of CPU engines, and what they have in common."""

from __future__ import annotations

from typing import Protocol


class CpuEngine(Protocol):
    """One tokenizer in one native library. Shared by all worker threads."""

    name: str
    version: str

    def encode(self, document: str) -> bytes:
        """Packed little-endian uint32 ids of one document, without special tokens, with the GIL released.

        One document is one native call on the calling thread, so that the thread's CPU clock sees all of the work. Any
        exception or panic means that this engine could not answer; it says nothing about the next document.
        """

    def guard(self, document: str) -> str | None:
        """Why this document must go to the reference instead; None when the engine may serve it."""


def is_fault(error: BaseException) -> bool:
    """Whether an exception is the engine's own failure. Native panics derive from `BaseException` only."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
