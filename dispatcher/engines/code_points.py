"""A set of code points, with a fast answer to whether a text contains any of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

SHORT = 512
"""Below this many characters a compiled character class is faster than a table look-up of the whole text."""


class CodePoints:
    """An immutable set of code points."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        """`ranges` are first and last code points, both included."""
        self.ranges = tuple(ranges)
        self.n_code_points = sum(last - first + 1 for first, last in ranges)
        self.digest = hashlib.sha256(repr(self.ranges).encode()).hexdigest()[:16]
        self._pattern = re.compile("[" + "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in ranges) + "]")
        self._member: NDArray[np.bool_] = np.zeros(0x110000, dtype=np.bool_)
        for first, last in ranges:
            self._member[first : last + 1] = True

    def in_text(self, text: str) -> bool:
        """Whether any character of the text is in the set. Raises `UnicodeEncodeError` on a lone surrogate."""
        if len(text) < SHORT:
            return self._pattern.search(text) is not None
        code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        return bool(self._member[code_points].any())


def read_code_points(resource: str) -> CodePoints:
    """The set in a file of `dispatcher/data`: a hexadecimal code point or `first-last` on each line, `#` comments."""
    text = files("dispatcher").joinpath("data", resource).read_text(encoding="ascii")
    ranges = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            first, _, last = line.partition("-")
            ranges.append((int(first, 16), int(last or first, 16)))
    return CodePoints(ranges)
