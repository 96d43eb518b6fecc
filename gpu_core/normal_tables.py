"""What the device knows of canonical decomposition and composition, as the reference engine has them.

`scripts/make_class_tables.py` writes the file that this reads.

Every code point has a detail: 0 where it decomposes into itself and the quick check's class is its combining class;
`ITSELF` and the combining class where it decomposes into itself; else the row of its decomposition. Hangul syllables,
whose detail is 0, go by rule.

    U+00E9 é   detail -> row (U+0065, U+0301 of class 230, 0, 0)
    U+0301     detail ITSELF | 230, because its class says that it may change
    U+0334     detail 0, class 1
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core import cuckoo
from gpu_core.classes import DATA, NOT_NORMAL, normal_form_classes, two_stage
from gpu_core.normal_layout import NORMAL_TABLES
from gpu_core.tables import Tables

FILE = "decompositions.bin"
DIGEST = "37b1c6e44c0a00352e48d98157024271bd195172b0ffdfb398a91f09c03ad81c"
"""SHA-256 of the unpacked file."""
ITSELF = 0x8000
"""In a detail: the code point decomposes into itself, and the low bits are its combining class."""
CLASS_AT = 24
"""Bit of a part of a decomposition from which on it holds the combining class; below lies the code point."""
_MAX_PARTS = 4
"""Parts of the decomposition of one code point at most."""


@dataclass(frozen=True, slots=True)
class Decompositions:
    """What the file holds."""

    parts: dict[int, tuple[int, ...]]
    """Full canonical decomposition of each code point that has one, Hangul syllables left out."""
    marks: dict[int, int]
    """Combining class of each code point that the quick check doubts and that decomposes into itself."""

    def pairs(self) -> dict[tuple[int, int], int]:
        """What composes, and into what: the last part of a decomposition with that which those before it make."""
        classes = normal_form_classes()
        kept = {code: parts for code, parts in self.parts.items() if classes[code] != NOT_NORMAL}
        makes = {parts: code for code, parts in kept.items()}
        return {(parts[0] if len(parts) == 2 else makes[parts[:-1]], parts[-1]): code for parts, code in makes.items()}


@dataclass(frozen=True, slots=True)
class NormalTables:
    """The tables of all tokenizers."""

    arrays: dict[str, NDArray[Any]]
    """By the name of the pointer in `normal_layout.NORMAL_TABLES`."""
    numbers: dict[str, int]
    """Factors of the hash of `compositions`."""

    def struct(self, addresses: dict[str, int], literals: Iterable[bytes]) -> NDArray[Any]:
        """The kernel's first argument, given where each array lies, for a tokenizer with these added tokens."""
        struct = np.zeros((), dtype=NORMAL_TABLES)
        for name, number in (addresses | self.numbers).items():
            struct[name] = number
        for literal in literals:
            _add(struct["endings"], literal[-1:])
            _add(struct["letters"], literal)
        return struct


def obstacle(tables: Tables) -> str:
    """Why the device does not bring a tokenizer's text into normal form, or nothing."""
    if not tables.defines["SIDETOK_NFC"]:
        return "the normalizer is not NFC"
    if not all(literal.isascii() for literal in literals_of(tables)):
        return "an added token that is not ASCII"
    return ""


def literals_of(tables: Tables) -> list[bytes]:
    """The added tokens, none of which is searched for in normalized text where there is a normalizer."""
    pool = tables.arrays["pool"].tobytes()
    slots = tables.arrays["literal_slots"].tolist()
    return [pool[offset : offset + length] for _hash, offset, length, _id in slots if length]


def pack(decompositions: Decompositions) -> bytes:
    """As the file has them, not compressed: how many, rows (code point, parts), rows (code point, combining class)."""
    rows = np.zeros((len(decompositions.parts), 1 + _MAX_PARTS), dtype="<u4")
    for row, (code, parts) in zip(rows, sorted(decompositions.parts.items()), strict=True):
        row[: 1 + len(parts)] = code, *parts
    marks = np.array(sorted(decompositions.marks.items()), dtype="<u4")
    return np.uint32(len(rows)).tobytes() + rows.tobytes() + marks.tobytes()


def digest(decompositions: Decompositions) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(pack(decompositions)).hexdigest()


@cache
def read_decompositions() -> Decompositions:
    """The committed file."""
    words = np.frombuffer(zlib.decompress((DATA / FILE).read_bytes()), "<u4")
    end = 1 + (1 + _MAX_PARTS) * int(words[0])
    rows = words[1:end].reshape(-1, 1 + _MAX_PARTS).tolist()
    marks = words[end:].reshape(-1, 2).tolist()
    return Decompositions({row[0]: tuple(filter(None, row[1:])) for row in rows}, {code: ccc for code, ccc in marks})


@cache
def normal_tables() -> NormalTables:
    """The tables on the host."""
    known, classes = read_decompositions(), normal_form_classes()
    details = np.zeros(len(classes), dtype=np.uint16)
    details[list(known.marks)] = [ITSELF | ccc for ccc in known.marks.values()]
    details[list(known.parts)] = np.arange(1, len(known.parts) + 1)
    rows = np.zeros((len(known.parts) + 1, _MAX_PARTS), dtype=np.uint32)
    for row, parts in zip(rows[1:], known.parts.values(), strict=True):
        row[: len(parts)] = [known.marks.get(part, int(classes[part])) << CLASS_AT | part for part in parts]
    class_pages, class_blocks = two_stage(classes)
    detail_pages, detail_blocks = two_stage(details)
    slots, numbers = _composition_slots(known.pairs())
    arrays: dict[str, NDArray[Any]] = {
        "class_pages": class_pages,
        "class_blocks": class_blocks,
        "detail_pages": detail_pages,
        "detail_blocks": detail_blocks,
        "decompositions": rows,
        "compositions": slots,
    }
    return NormalTables(arrays, numbers)


def _composition_slots(pairs: dict[tuple[int, int], int]) -> tuple[NDArray[np.uint64], dict[str, int]]:
    """Slots `first << 42 | second << 21 | composed`, see `gpu_core.cuckoo`; and the factors of the hash."""
    keys = np.array(list(pairs), dtype=np.uint32)
    composed = np.array(list(pairs.values()), dtype=np.uint64)
    placement = next(filter(None, (cuckoo.place(keys, seed) for seed in cuckoo.seeds())))
    used = placement.owner >= 0
    first, second = keys[placement.owner[used]].astype(np.uint64).T
    # No character has the number that an empty slot has in the place of its first one.
    slots = np.full(len(placement.owner), ~np.uint64(0))
    slots[used] = first << np.uint64(42) | second << np.uint64(21) | composed[placement.owner[used]]
    a0, a1, _a2, _a3, b0, b1, _b2, _b3 = cuckoo.factors(placement.seed)
    return slots, {"a0": a0, "a1": a1, "b0": b0, "b1": b1, "shift": placement.shift}


def _add(mask: NDArray[np.uint32], characters: bytes) -> None:
    """Set the bit of each ASCII character in a mask of four words."""
    for character in characters:
        mask[character >> 5] |= np.uint32(1 << (character & 31))
