"""How text reaches the device and results leave it. No CuPy here.

    text      mapped    the blocks read the pinned memory of the host where it lies
              fetched   the first blocks copy the live bytes to the device, the others wait for theirs
    results   mapped    the blocks write ids to the pinned memory of the host
              resident  they stay on the device

The choice comes from measurements on an H200, see docs/performance.md: ids that the blocks write in whole lines are on
the host when the kernel ends, at every size; blocks that fetch make good use of the bus, which pays from a few KiB on.
A copy engine gains nothing in either direction.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

TextTransfer = Literal["mapped", "fetched"]
ResultTransfer = Literal["mapped", "resident"]

MAPPED_TEXT_BYTES = 4 << 10
"""Up to here the blocks read text over the bus themselves."""
MAPPED_DOCUMENTS = 32
"""Every block searches the document starts; more of them are worth a copy on the device."""


class Transfer(NamedTuple):
    """One way in and one way out; each pair has a graph of its own."""

    text: TextTransfer
    results: ResultTransfer


NEAR, FAR = Transfer("mapped", "mapped"), Transfer("fetched", "mapped")
NEAR_RESIDENT, FAR_RESIDENT = Transfer("mapped", "resident"), Transfer("fetched", "resident")
TRANSFERS = (NEAR, FAR, NEAR_RESIDENT, FAR_RESIDENT)


def choose(n_bytes: int, n_documents: int, resident: bool) -> Transfer:
    """The fastest way for one replay."""
    if n_bytes <= MAPPED_TEXT_BYTES and n_documents <= MAPPED_DOCUMENTS:
        return NEAR_RESIDENT if resident else NEAR
    return FAR_RESIDENT if resident else FAR
