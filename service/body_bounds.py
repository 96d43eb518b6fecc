"""How many values a body may have. What a parser makes of them takes far more memory than their bytes, and it holds the
interpreter while it does: 60 MB of empty lists would stop everything else for eight seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.errors import BodyTooLarge

MAX_VALUES = 1 << 21
"""Items of all lists together: ids, mostly. About 0.1 s of parsing."""
MAX_NODES = 1 << 18
"""Lists, objects and names of fields together."""
UNCOUNTED_BYTES = 2 * MAX_NODES - (1 << 14)
"""A body up to this length cannot have more nodes: a list or object has two brackets, a field two quotes and a colon.

Only what is open where a parser stops has one byte, and no parser goes that deep.
"""
PIECE_BYTES = 1 << 18
"""Bytes that are looked at in one go (below 1 ms); between pieces other threads get the interpreter."""

_COMMA, _QUOTE, _BACKSLASH, _COLON, _BRACE = b',"\\:{'
_CASE = np.uint8(0x20)
"""The bit by which `[` differs from `{`, and no other byte from either."""


def check_json(body: bytes) -> None:
    """Raise `BodyTooLarge` when a JSON body has too many values, before it is parsed.

    The body need not be valid: what a parser reads before it stops is bounded all the same.
    """
    if len(body) <= UNCOUNTED_BYTES:
        return
    n_commas = n_nodes = 0
    may_have_many_values = len(body) > MAX_VALUES
    # Text may be full of such characters, but seldom is: count all of them first.
    for start in range(0, len(body), PIECE_BYTES):
        piece = np.frombuffer(body, np.uint8, min(PIECE_BYTES, len(body) - start), start)
        n_commas += _count(piece, _COMMA) if may_have_many_values else 0
        n_nodes += _count_nodes(piece)
        if n_commas > MAX_VALUES or n_nodes > MAX_NODES:
            _check_outside_strings(body)
            return


class MsgpackCounter:
    """Hooks of a msgpack parser that raise `BodyTooLarge` at the list or map that is one too many."""

    def __init__(self) -> None:
        self._n_values = 0
        self._n_nodes = 0

    def list_hook(self, values: list[Any]) -> list[Any]:
        """A list was read."""
        self._add(len(values), 1)
        return values

    def object_hook(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        """A map was read."""
        self._add(0, 1 + len(fields))
        return fields

    def _add(self, n_values: int, n_nodes: int) -> None:
        self._n_values += n_values
        self._n_nodes += n_nodes
        _check(self._n_values, self._n_nodes)


def too_many_values() -> BodyTooLarge:
    """The error of a body over the bounds."""
    return BodyTooLarge(
        f"The body has more than {MAX_VALUES} values in its lists, or {MAX_NODES} lists, objects and fields; split it, "
        "or send ids packed, as msgpack or octet-stream."
    )


def _count(piece: NDArray[np.uint8], byte: int) -> int:
    return int(np.count_nonzero(piece == byte))


def _count_nodes(piece: NDArray[np.uint8]) -> int:
    return _count(piece, _COLON) + _count(piece | _CASE, _BRACE)


def _check(n_values: int, n_nodes: int) -> None:
    if n_values > MAX_VALUES or n_nodes > MAX_NODES:
        raise too_many_values()


def _check_outside_strings(body: bytes) -> None:
    """Count again, without what stands inside of strings."""
    n_commas = n_nodes = start = in_string = 0
    while start < len(body):
        raw = body[start : start + PIECE_BYTES]
        # A run of backslashes that the end of the piece cuts is cut between pairs.
        if (len(raw) - len(raw.rstrip(b"\\"))) % 2 and start + len(raw) < len(body):
            raw = raw[:-1]
        start += len(raw)
        if _BACKSLASH in raw:
            raw = raw.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        piece = np.frombuffer(raw, np.uint8)
        # Odd behind an opening quote, even behind a closing one; a sum modulo 256 keeps that.
        inside = (np.cumsum(piece == _QUOTE, dtype=np.uint8) + np.uint8(in_string)) & 1
        in_string = int(inside[-1])
        outside = np.where(inside, np.uint8(0), piece)
        n_commas += _count(outside, _COMMA)
        n_nodes += _count_nodes(outside)
        _check(n_commas, n_nodes)
