"""Hash tables of a tokenizer as the kernels read them: entries, strings, merge rules; see `gpu_core.cuckoo`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core import cuckoo
from gpu_core.bpe_file import Rules
from gpu_core.errors import UnsupportedTokenizer

SHORT_KEY = 12
"""Longest entry that is a key by itself: a slot of 16 bytes holds its bytes and `id << 4 | length`."""
ID_BITS = 18
"""Bits of an id in a merge slot."""
ORDER_BITS = 28
"""Bits of a rule's order in a merge slot, which compares as ranks do; the lowest says "merged one place at a time"."""
TIE_BITS = ORDER_BITS - ID_BITS - 1
_DENSE_LOAD = 0.495
_EMPTY_SLOT = np.uint64(0xFFFFFFFFFFFFFFFF)


def merged_one_at_a_time(rules: Rules) -> NDArray[np.bool_]:
    """For each rule, whether its product can form a pair of lower rank.

    Of every other rule all places may be merged at once: no pair of lower or equal rank comes into being before the
    last of them.
    """
    n_ids = int(max(rules.left.max(), rules.right.max(), rules.product.max())) + 1
    ranks = np.arange(len(rules.product))
    lowest_use = np.full(n_ids, len(ranks), dtype=np.int64)
    np.minimum.at(lowest_use, rules.left, ranks)
    np.minimum.at(lowest_use, rules.right, ranks)
    return lowest_use[rules.product] <= ranks


def key_words(entries: list[bytes]) -> NDArray[np.uint32]:
    """The keys of short entries: their bytes as 3 little-endian words, and the length; shape (n, 4)."""
    padded = b"".join(entry.ljust(SHORT_KEY, b"\0") + len(entry).to_bytes(4, "little") for entry in entries)
    return np.frombuffer(padded, "<u4").reshape(-1, 4)


def _place(
    name: str, keys: NDArray[np.uint32], numbers: dict[str, int], max_load: float = cuckoo.MAX_LOAD
) -> NDArray[np.int64]:
    for seed in cuckoo.seeds():
        placement = cuckoo.place(keys, seed, max_load)
        if placement is not None:
            numbers[f"{name}_shift"] = placement.shift
            for i, factor in enumerate(cuckoo.factors(seed)):
                side, word = divmod(i, 4)
                if word < keys.shape[1]:
                    numbers[f"{name}_{'ab'[side]}{word}"] = factor
            return placement.owner
    raise UnsupportedTokenizer(f"no seed places the {name} table: the file repeats keys")


def short_table(entries: dict[bytes, int], numbers: dict[str, int]) -> NDArray[np.uint32]:
    """Slots of (12 bytes, `id << 4 | length`) for the entries of up to `SHORT_KEY` bytes; longer ones are left out."""
    short = [entry for entry in entries if len(entry) <= SHORT_KEY]
    words = key_words(short)
    owner = _place("short", words, numbers)
    used = owner >= 0
    # An empty slot has length 0, which no pre-token has.
    slots = np.zeros((len(owner), 4), dtype=np.uint32)
    slots[used] = words[owner[used]]
    slots[used, 3] |= np.array([entries[entry] for entry in short], dtype=np.uint32)[owner[used]] << 4
    return slots


class StringPool:
    """Bytes of the strings that are compared after their hash, each padded with zeros to a multiple of 4."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, text: bytes) -> int:
        """Where the text lies, in bytes."""
        offset = len(self.data)
        self.data += text.ljust(-(-len(text) // 4) * 4, b"\0")
        return offset

    def array(self) -> NDArray[np.uint32]:
        """All of it; never empty."""
        return np.frombuffer(bytes(self.data) or bytes(4), "<u4")


def string_table(name: str, strings: dict[bytes, int], pool: StringPool, numbers: dict[str, int]) -> NDArray[np.uint32]:
    """Slots of (low hash word, offset in the pool, length, id); an empty one has length 0."""
    texts = list(strings)
    hashes = np.array([cuckoo.hash_bytes(text) for text in texts], dtype=np.uint64)
    owner = _place(name, hashes.view(np.uint32).reshape(len(texts), 2), numbers)
    slots = np.zeros((len(owner), 4), dtype=np.uint32)
    for slot in np.flatnonzero(owner >= 0):
        text = texts[owner[slot]]
        slots[slot] = (int(hashes[owner[slot]]) & 0xFFFFFFFF, pool.add(text), len(text), strings[text])
    return slots


def merge_table(rules: Rules, numbers: dict[str, int]) -> NDArray[Any]:
    """Slots `left << 46 | right << 28 | order`; rows (left, right, order, product) where no order holds the product.

    An order is even, or odd if the rule is merged one place at a time.
    """
    by_pair = rules.by_pair()
    pairs = np.array(list(by_pair), dtype=np.uint32).reshape(-1, 2)
    rank, _product = np.array(list(by_pair.values()), dtype=np.int64).reshape(-1, 2).T
    order = _product_order(rules)
    if order is None:
        return _wide_merge_table(rules, pairs, rank, numbers)
    order = order << 1 | merged_one_at_a_time(rules)
    owner = _place("merge", pairs, numbers)
    used = owner >= 0
    rule = owner[used]
    slots = np.full(len(owner), _EMPTY_SLOT)
    left, right = pairs[rule].astype(np.uint64).T
    slots[used] = (left << np.uint64(ID_BITS) | right) << np.uint64(ORDER_BITS) | order[rank[rule]].astype(np.uint64)
    return slots


def _wide_merge_table(
    rules: Rules, pairs: NDArray[np.uint32], rank: NDArray[np.int64], numbers: dict[str, int]
) -> NDArray[np.uint32]:
    try:
        # These slots are large, and a smaller table stays nearer.
        owner = _place("merge", pairs, numbers, _DENSE_LOAD)
    except UnsupportedTokenizer:
        owner = _place("merge", pairs, numbers)
    used = owner >= 0
    rule = owner[used]
    slots = np.full((len(owner), 4), 0xFFFFFFFF, dtype=np.uint32)
    slots[used, :2] = pairs[rule]
    slots[used, 2] = (np.arange(len(rules.product)) << 1 | merged_one_at_a_time(rules))[rank[rule]]
    slots[used, 3] = rules.product[rank[rule]]
    return slots


def _product_order(rules: Rules) -> NDArray[np.int64] | None:
    """`product << TIE_BITS | n` for the n-th rule of a product, if this sorts the rules as their ranks do."""
    if (np.diff(rules.product) < 0).any():
        return None
    first = np.searchsorted(rules.product, rules.product, side="left")
    tie = np.arange(len(rules.product)) - first
    if tie.max(initial=0) >= 1 << TIE_BITS:
        return None
    return rules.product << TIE_BITS | tie
