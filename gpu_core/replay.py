"""One replay of an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_core.encoding import Lease


@dataclass(slots=True)
class Replay:
    """One replay on its way."""

    lease: Lease
    n_bytes: int
    n_documents: int
    flags: int
    resident: bool = False
    pieces: bool = False
    """Over pieces, in the place of documents."""
    launched_ns: int = 0
