"""How text reaches the device and results leave it. No CuPy here.

    text      mapped    kernels read the pinned memory of the host where it lies
              fetched   a kernel copies the live bytes to the device first
              copied    the copy engine does, before the graph is launched
    results   mapped    `encode` writes ids to the pinned memory of the host
              delivered a kernel copies the live ids to the host at the end
              resident  they stay on the device

The choice by size comes from measurements on an H200, see docs/performance.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TextTransfer = Literal["mapped", "fetched", "copied"]
ResultTransfer = Literal["mapped", "delivered", "resident"]

MAPPED_TEXT_BYTES = 64 << 10
"""Up to here the blocks read text over the bus themselves."""
MAPPED_DOCUMENTS = 32
"""Every block searches the document starts; more of them are worth a copy on the device."""
MAPPED_RESULTS_BYTES = 64 << 10
"""Text up to this size has its ids written over the bus by `encode` itself."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One way in and one way out; each pair that is used has a graph of its own."""

    text: TextTransfer
    results: ResultTransfer

    @property
    def text_on_device(self) -> bool:
        """Whether header, text and document starts have a copy on the device."""
        return self.text != "mapped"

    @property
    def results_on_device(self) -> bool:
        """Whether `encode` writes to the memory of the device."""
        return self.results != "mapped"


def choose(n_bytes: int, n_documents: int, resident: bool) -> Transfer:
    """The fastest way for one replay."""
    near = n_bytes <= MAPPED_TEXT_BYTES and n_documents <= MAPPED_DOCUMENTS
    text: TextTransfer = "mapped" if near else "fetched"
    if resident:
        return Transfer(text, "resident")
    return Transfer(text, "mapped" if n_bytes <= MAPPED_RESULTS_BYTES else "delivered")


def used_by(capacity: int) -> tuple[Transfer, ...]:
    """Every transfer that `choose` may answer for texts of a size class."""
    sizes = (1, min(capacity, MAPPED_TEXT_BYTES), min(capacity, MAPPED_RESULTS_BYTES), capacity)
    found = {
        choose(n_bytes, n_documents, resident): None
        for n_bytes in sizes
        for n_documents in (1, MAPPED_DOCUMENTS + 1)
        for resident in (False, True)
    }
    return tuple(found)
