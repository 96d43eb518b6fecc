"""Tables for SentencePiece-style BPE.

They differ from `gpu_core.tables` in the split (pairs of neighbours in place of classes), in the first symbols (one for
each character, bytes for unknown ones) and in added tokens that are runs. Keys are raw text: a space in the place of
the normalizer's blank. A blank that stands in the text itself then misses the lookup, and its component is merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core import cuckoo
from gpu_core.blank_runs import blank_run
from gpu_core.character_bpe import BLANK, CharacterBpe, check_character_bpe, read_character_bpe
from gpu_core.closed import closed_of
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import HALO_RIGHT, MAX_PRETOKEN
from gpu_core.literals import bigram_bits
from gpu_core.run_literals import RunLiteral, split_literals
from gpu_core.slots import SHORT_KEY, StringPool, merge_table, short_table, string_table
from gpu_core.spec import TokenizerSpec

NO_SYMBOL = 0xFFFFFFFF
"""In `character_blocks`: the character is no entry, its bytes are looked up in `byte_ids`."""
PAIR_BITS = 20
"""Log2 of the bits of `pair_bits`."""
MAX_RUN_BYTES = HALO_RIGHT - 8
"""Longest added token that is a run: one that begins in a tile must end, and its end be seen, in the same window."""
MAX_RUN_START = 8
"""Bytes of the shortest one at most: what may or may not be one lies so near the window's end that nobody asks."""
MAX_RUNS = 14
_PAIR_SEED = 1
_ASCII = 128
_FIRST_OF_LITERAL, _FIRST_OF_RUN, _OF_SEVERAL = 0x80, 0x40, 0x10
_OF_TEXT = 1 << 31


class Joins:
    """Whether a token may lie across two neighbours, as the kernel sees it: exact within ASCII, else too often."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """`arrays`: those of the tables."""
        self._exact, self._bits = arrays["ascii_pairs"], arrays["pair_bits"]

    def __call__(self, x: str, y: str) -> bool:
        """For two characters of a text."""
        return bool(self.many(np.array([ord(x)]), np.array([ord(y)]))[0])

    def many(self, x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For pairs of code points of a text."""
        x, y = (np.where(points == ord(BLANK), ord(" "), points) for points in (x, y))
        is_ascii = (x | y) < _ASCII
        at = pair_hash(x, y)
        hashed = self._bits[at >> 5] >> (at & 31).astype(np.uint32)
        exact = self._exact[np.where(is_ascii, x, 0), np.where(is_ascii, y, 0) >> 5] >> (y & 31).astype(np.uint32)
        joined: NDArray[np.bool_] = (np.where(is_ascii, exact, hashed) & 1).astype(bool)
        return joined


def check_bridge_support(spec: TokenizerSpec) -> None:
    """Raises `UnsupportedTokenizer` with the reason when the device cannot serve such a tokenizer exactly."""
    check_character_bpe(spec)
    if spec.normalizers == ("Prepend", "Replace"):
        raise UnsupportedTokenizer("a normalizer that puts a blank before each piece of text")
    if spec.normalizers != ("Replace",):
        raise UnsupportedTokenizer(f"the normalizer {spec.normalizer}")
    runs, _literals = split_literals(spec)
    if len(runs) > MAX_RUNS:
        raise UnsupportedTokenizer(f"added tokens that are runs of {len(runs)} different characters")
    for run in runs:
        width = len(run.character.encode())
        if run.longest * width > MAX_RUN_BYTES or run.shortest * width > MAX_RUN_START:
            raise UnsupportedTokenizer(
                f"added tokens of {run.shortest} to {run.longest} times U+{ord(run.character):04X}"
            )


def build_bridge_tables(data: bytes, spec: TokenizerSpec) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Arrays and numbers of `layout.TABLES` for a tokenizer.json. Raises `UnsupportedTokenizer` with the reason."""
    check_bridge_support(spec)
    model = read_character_bpe(data, spec)
    runs, literals = split_literals(spec)
    closed = {content.replace(BLANK, " ").encode(): i for content, i in closed_strings(model).items()}
    longer = {entry: i for entry, i in closed.items() if SHORT_KEY < len(entry) <= MAX_PRETOKEN}
    blanks = blank_run(model, spec)
    numbers = {
        "max_literal": max(map(len, literals), default=0),
        "n_runs": len(runs) + (blanks is not None),
        **{f"pair_{name}": factor for name, factor in zip("ab", cuckoo.factors(_PAIR_SEED), strict=False)},
    }
    pool = StringPool()
    arrays: dict[str, NDArray[Any]] = {"ascii_pairs": _ascii_pairs(model), "pair_bits": _pair_bits(model)}
    arrays["ascii"] = _first_bytes(runs, literals)
    if blanks:
        arrays["ascii"][ord(" ")] |= len(runs) + 1 | _OF_SEVERAL
    arrays["character_pages"], arrays["character_blocks"] = _character_table(model)
    arrays["byte_ids"] = model.byte_ids
    arrays["short_slots"] = short_table(closed, numbers)
    arrays["long_slots"] = string_table("long", longer, pool, numbers)
    arrays["merge_slots"] = merge_table(model.rules, numbers)
    arrays["literal_slots"] = string_table("literal", literals, pool, numbers)
    arrays["literal_bigrams"] = bigram_bits(literals)
    arrays["runs"], arrays["run_ids"] = _run_table(runs, blanks)
    arrays["pool"] = pool.array()
    return arrays, numbers


def closed_strings(model: CharacterBpe) -> dict[str, int]:
    """The entries whose own characters merge to exactly the entry, in normalized spelling."""
    characters = model.characters
    entries = {entry: number for entry, number in model.entries.items() if all(char in characters for char in entry)}
    return closed_of(
        entries, model.rules, lambda same: np.array([[characters[char] for char in entry] for entry in same], np.int64)
    )


def pair_hash(x: NDArray[np.int64], y: NDArray[np.int64], n_bits: int = PAIR_BITS) -> NDArray[np.int64]:
    """Bit of `pair_bits` for code points of raw text: the high part of a sum of products, as in `gpu_core.cuckoo`."""
    a, b = cuckoo.factors(_PAIR_SEED)[:2]
    return ((x * a + y * b) & 0xFFFFFFFF) >> (32 - n_bits)


def pair_points(model: CharacterBpe) -> NDArray[np.int64]:
    """The joined pairs as code points of raw text, a space for a blank; shape (n, 2).

    A blank in the raw text has no row of its own: `joins` reads it as a space.
    """
    rows = sorted((ord(x), ord(y)) for x, y in model.joined_pairs)
    points = np.array(rows, dtype=np.int64).reshape(-1, 2)
    points[points == ord(BLANK)] = ord(" ")
    return points


def _first_bytes(runs: list[RunLiteral], literals: dict[bytes, int]) -> NDArray[np.uint8]:
    """For each byte: whether a literal may begin with it, a run of a longer character, or the number of its own run."""
    table = np.zeros(256, dtype=np.uint8)
    for number, run in enumerate(runs, start=1):
        encoded = run.character.encode()
        table[encoded[0]] |= number if len(encoded) == 1 else _FIRST_OF_RUN
    for literal in literals:
        table[literal[0]] |= _FIRST_OF_LITERAL
    return table


def _ascii_pairs(model: CharacterBpe) -> NDArray[np.uint32]:
    """Bit y of row x, shape (128, 4)."""
    bits = np.zeros((_ASCII, _ASCII), dtype=np.uint8)
    points = pair_points(model)
    x, y = points[(points < _ASCII).all(axis=1)].T
    bits[x, y] = 1
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def _pair_bits(model: CharacterBpe) -> NDArray[np.uint32]:
    bits = np.zeros(1 << PAIR_BITS, dtype=np.uint8)
    points = pair_points(model)
    bits[pair_hash(*points[(points >= _ASCII).any(axis=1)].T)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _character_table(model: CharacterBpe) -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
    """The first symbol of raw character c is `blocks[pages[c >> 8], c & 255]`, or `NO_SYMBOL`."""
    table = np.full(0x110000, NO_SYMBOL, dtype=np.uint32)
    table[[ord(char) for char in model.characters]] = list(model.characters.values())
    table[ord(" ")] = model.characters.get(BLANK, NO_SYMBOL)
    blocks, pages = np.unique(table.reshape(-1, 256), axis=0, return_inverse=True)
    return pages.reshape(-1).astype(np.uint16), np.ascontiguousarray(blocks)


def _run_table(runs: list[RunLiteral], blanks: RunLiteral | None) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Rows of (code point, shortest, longest, first place in the ids), and the ids; blanks last, with a flag."""
    rows: list[tuple[int, int, int, int]] = []
    ids: list[int] = []
    for run in [*runs, *([blanks] if blanks else [])]:
        rows.append((ord(run.character), run.shortest | (_OF_TEXT if run is blanks else 0), run.longest, len(ids)))
        ids += run.ids
    return np.array(rows, dtype=np.uint32).reshape(-1, 4), np.array(ids, dtype=np.uint32)
