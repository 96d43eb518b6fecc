"""Offsets in bytes from offsets in characters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def byte_offsets(text: str, char_offsets: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The same spans in bytes of the text's UTF-8. Shape (n, 2) in and out.

    A token that is a part of a character spans the whole character, as it does in the reference's character offsets.
    """
    if text.isascii():
        return char_offsets
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    starts = np.zeros(len(code_points) + 1, dtype=np.uint32)
    widths = 1 + (code_points > 0x7F) + (code_points > 0x7FF) + (code_points > 0xFFFF).astype(np.uint32)
    np.cumsum(widths, out=starts[1:])
    return starts[char_offsets]
