"""The one interface of CPU engines, and what they have in common."""

from __future__ import annotations

from typing import Protocol


class CpuEngine(Protocol):
    """One tokenizer in one native library, shared by all worker threads."""

    name: str
    version: str
    """Of the library; with `guard_digest` it says which engine a proof is about."""
    guard_digest: str
    """Identifies the rules of `guard`; empty when there are none."""

    def encode(self, document: str) -> bytes:
        """Packed little-endian uint32 ids of one document, without special tokens, with the GIL released.

        All work is done on the calling thread, so that its CPU clock sees it.
        Any exception or panic means that this engine could not answer; it says nothing about the next document.
        """

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """`encode` of each document. Where the library can, all of them in one native call on the calling thread.

        An exception says that at least one of them could not be answered, not which.
        """

    def guard(self, document: str) -> str | None:
        """Why this document must go to the reference; None when the engine may serve it.

        Only asked about documents that are not ASCII: no engine is known to differ on ASCII.
        """


def is_fault(error: BaseException) -> bool:
    """Whether an exception is a failure of native code. Its panics derive from `BaseException` only."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def reason_of(error: BaseException) -> str:
    """The first line of what a native library says, short enough for a log line."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
