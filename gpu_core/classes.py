"""Character classes as the reference engine sees them: one byte for every code point, from committed tables.

`scripts/make_class_tables.py` writes the files from the reference's own regex engine and normalizer, because Python's
`unicodedata` follows another version of Unicode. Base classes are told apart finely enough for every pattern family;
a family merges them.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"

Value = TypeVar("Value", np.uint8, np.uint16)

OTHER, UPPER, LOWER, LETTER, MARK, NUMBER, PUNCTUATION, SPACE = range(8)
"""Base classes: Lu and Lt, Ll, Lm and Lo, M, N, P and S, `\\s`."""
HAN = 8
"""Added to the base class of a Han character."""
NOT_NORMAL = 255
"""In the table of normal forms: the character may change under NFC. Other values are canonical combining classes."""

DIGESTS = {
    "classes.bin": "7766032d19d9c24e3b9a5ec3aef8de0504b332394139e9e3a37f49728cd9223b",
    "normal_form.bin": "47537f4f2b88b4c9c6cf42c3bad466d6929398b4dade400e7d202067aa7f51f6",
}
"""SHA-256 of the unpacked tables."""

CJK = ((0x4E00, 0x9FA6), (0x3040, 0x3100))
"""The ranges that the DeepSeek pattern calls CJK, half open."""

FAMILY_CLASSES: dict[str, tuple[str, ...]] = {
    "cl100k": ("none", "letter", "number", "newline", "plain_space", "blank", "other"),
    "qwen2": ("none", "letter", "number", "newline", "plain_space", "blank", "other"),
    "gpt2": ("none", "letter", "number", "newline", "plain_space", "blank", "other"),
    "deepseek_v3": ("none", "letter", "number", "newline", "plain_space", "blank", "other", "punctuation", "cjk"),
}
"""The classes of each family in the order of their codes.

`newline` is CR and LF, `blank` any other white space but the plain space.
"""


def pack(table: NDArray[np.uint8]) -> bytes:
    """Run lengths (little-endian uint32) and values, compressed."""
    starts = np.flatnonzero(np.diff(table, prepend=np.uint8(~table[0]))).astype("<u4")
    return zlib.compress(np.uint32(len(starts)).tobytes() + starts.tobytes() + table[starts].tobytes(), 9)


def unpack(data: bytes, length: int) -> NDArray[np.uint8]:
    """The reverse of `pack`."""
    raw = zlib.decompress(data)
    n = int(np.frombuffer(raw, "<u4", 1)[0])
    starts = np.frombuffer(raw, "<u4", n, 4).astype(np.int64)
    return np.repeat(np.frombuffer(raw, np.uint8, n, 4 + 4 * n), np.diff(starts, append=length))


def digest(table: NDArray[np.uint8]) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(table.tobytes()).hexdigest()


@cache
def base_classes() -> NDArray[np.uint8]:
    """The base class of every code point, shape (0x110000,)."""
    return unpack((DATA / "classes.bin").read_bytes(), 0x110000)


@cache
def normal_form_classes() -> NDArray[np.uint8]:
    """Combining class or `NOT_NORMAL` of every code point, shape (0x110000,)."""
    return unpack((DATA / "normal_form.bin").read_bytes(), 0x110000)


@cache
def family_classes(family: str) -> NDArray[np.uint8]:
    """The class code of every code point in a pattern family: an index into `FAMILY_CLASSES[family]`."""
    names = FAMILY_CLASSES[family]
    code = {name: i for i, name in enumerate(names)}
    base = base_classes() & ~np.uint8(HAN)
    by_base = np.full(8, code["other"], dtype=np.uint8)
    by_base[[UPPER, LOWER, LETTER]] = code["letter"]
    by_base[NUMBER], by_base[SPACE] = code["number"], code["blank"]
    if family == "deepseek_v3":
        by_base[MARK], by_base[PUNCTUATION] = code["letter"], code["punctuation"]
    table: NDArray[np.uint8] = by_base[base]
    table[[0x0D, 0x0A]], table[0x20] = code["newline"], code["plain_space"]
    if family == "deepseek_v3":
        for first, end in CJK:
            table[first:end] = code["cjk"]
    table.flags.writeable = False
    return table


def two_stage(table: NDArray[Value]) -> tuple[NDArray[np.uint16], NDArray[Value]]:
    """A table by code point as (pages, blocks): the value of `c` is `blocks[pages[c >> 8], c & 255]`."""
    blocks, pages = np.unique(table.reshape(-1, 256), axis=0, return_inverse=True)
    return pages.reshape(-1).astype(np.uint16), np.ascontiguousarray(blocks)
