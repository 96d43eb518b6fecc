"""Ids, and other numbers for each token, as JSON arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

IDS_PER_PIECE = 16_384
"""Ids that are written as JSON in one go (about 0.15 ms); between pieces other threads get the interpreter."""


def array_json(values: NDArray[Any]) -> bytes:
    """A one- or two-dimensional array as JSON, in pieces so that no single call holds the interpreter for long."""
    if len(values) <= IDS_PER_PIECE:
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join(_pieces(values))


def _pieces(values: NDArray[Any]) -> Iterator[bytes | memoryview]:
    before = b"["
    for start in range(0, len(values), IDS_PER_PIECE):
        yield before
        yield memoryview(orjson.dumps(values[start : start + IDS_PER_PIECE], option=orjson.OPT_SERIALIZE_NUMPY))[1:-1]
        before = b","
    yield b"]"


try:
    from service.decimals import ids_json as ids_json
except ImportError:  # the package is not compiled

    def ids_json(packed: bytes | memoryview, /) -> bytes:
        """Packed ids as a JSON array."""
        return array_json(np.frombuffer(packed, "<u4"))
