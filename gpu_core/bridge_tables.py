"""Tables for SentencePiece-style BPE, ready for a kernel that is not written yet; nothing serves with them.

They differ from `gpu_core.tables` in the split (pairs of neighbours in place of classes), in the first symbols (one for
each character, bytes for unknown ones) and in added tokens that are runs. Keys are raw text: a space in the place of
the normalizer's blank. A blank that stands in the text itself then misses the lookup, and its component is merged.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core import cuckoo
from gpu_core.character_bpe import BLANK, CharacterBpe, read_character_bpe
from gpu_core.closed import PairLookup, merge_rows
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import MAX_PRETOKEN
from gpu_core.literals import bigram_bits
from gpu_core.run_literals import RunLiteral, overlap_free, split_literals
from gpu_core.slots import ID_BITS, SHORT_KEY, StringPool, merge_table, short_table, string_table
from gpu_core.spec import TokenizerSpec

NO_SYMBOL = 0xFFFFFFFF
"""In `character_blocks`: the character is no entry, its bytes are looked up in `byte_ids`."""
PAIR_BITS = 20
"""Log2 of the bits of `pair_bits`."""
_PAIR_SEED = 1
_ASCII = 128


@dataclass(frozen=True, slots=True)
class BridgeTables:
    """One tokenizer's tables on the host."""

    arrays: dict[str, NDArray[Any]]
    numbers: dict[str, int]

    def joins(self, x: str, y: str) -> bool:
        """What a kernel answers for two neighbours: exact within ASCII, else one bit that may be set by others, too."""
        a, b = (ord(" " if char == BLANK else char) for char in (x, y))
        if a < _ASCII and b < _ASCII:
            return bool(self.arrays["ascii_pairs"][a, b >> 5] >> np.uint32(b & 31) & 1)
        at = int(pair_hash(np.array([a]), np.array([b]))[0])
        return bool(self.arrays["pair_bits"][at >> 5] >> np.uint32(at & 31) & 1)


def build_bridge_tables(data: bytes, spec: TokenizerSpec) -> BridgeTables:
    """The tables of a tokenizer.json. Raises `UnsupportedTokenizer` with the reason."""
    model = read_character_bpe(data, spec)
    if max(int(model.rules.product.max(initial=0)), *model.entries.values()) >= 1 << ID_BITS:
        raise UnsupportedTokenizer(f"entries of the vocabulary with ids of more than {ID_BITS} bits")
    runs, literals = split_literals(spec)
    closed = {content.replace(BLANK, " ").encode(): i for content, i in closed_strings(model).items()}
    longer = {entry: i for entry, i in closed.items() if SHORT_KEY < len(entry) <= MAX_PRETOKEN}
    numbers = {
        "prepends": int(model.prepends),
        "max_literal": max(map(len, literals), default=0),
        "overlap_free": int(overlap_free(literals)),
        **{f"pair_{name}": factor for name, factor in zip("ab", cuckoo.factors(_PAIR_SEED), strict=False)},
    }
    pool = StringPool()
    arrays: dict[str, NDArray[Any]] = {"ascii_pairs": _ascii_pairs(model), "pair_bits": _pair_bits(model)}
    arrays["character_pages"], arrays["character_blocks"] = _character_table(model)
    arrays["byte_ids"] = model.byte_ids
    arrays["short_slots"] = short_table(closed, numbers)
    arrays["long_slots"] = string_table("long", longer, pool, numbers)
    arrays["merge_slots"], arrays["merge_ids"] = merge_table(model.rules, numbers)
    arrays["literal_slots"] = string_table("literal", literals, pool, numbers)
    arrays["literal_bigrams"] = bigram_bits(literals)
    arrays["runs"], arrays["run_ids"] = _run_table(runs)
    arrays["pool"] = pool.array()
    return BridgeTables(arrays, numbers)


def closed_strings(model: CharacterBpe) -> dict[str, int]:
    """The entries whose own characters merge to exactly the entry, in normalized spelling."""
    lookup = PairLookup(model.rules)
    by_length: dict[int, list[str]] = defaultdict(list)
    for entry in model.entries:
        if all(char in model.characters for char in entry):
            by_length[len(entry)].append(entry)
    closed: dict[str, int] = {}
    for entries in by_length.values():
        symbols = np.array([[model.characters[char] for char in entry] for entry in entries], dtype=np.int64)
        result = merge_rows(symbols, lookup)
        ids = np.array([model.entries[entry] for entry in entries])
        closed |= {entries[i]: int(ids[i]) for i in np.flatnonzero(result == ids)}
    return closed


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


def _run_table(runs: list[RunLiteral]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Rows of (code point, shortest, longest, first place in the ids), and the ids."""
    rows: list[tuple[int, int, int, int]] = []
    ids: list[int] = []
    for run in runs:
        rows.append((ord(run.character), run.shortest, run.longest, len(ids)))
        ids += run.ids
    return np.array(rows, dtype=np.uint32).reshape(-1, 4), np.array(ids, dtype=np.uint32)
