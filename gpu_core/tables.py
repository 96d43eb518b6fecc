"""Everything that the kernels look up for one tokenizer, built once from its file and cached on disk by digest."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core import cuckoo
from gpu_core.bpe_file import Rules, read_bpe_model
from gpu_core.classes import DIGESTS, family_classes, normal_form_classes, two_stage
from gpu_core.closed import closed_entries
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import MAX_PRETOKEN, TABLES
from gpu_core.literals import bigram_bits, device_literals
from gpu_core.spec import TokenizerSpec

VERSION = 2
"""Changes whenever a table's content or layout does, so that an old cache is not read."""
SHORT_KEY = 12
"""Longest entry that is a key by itself: a slot of 16 bytes holds its bytes and `id << 4 | length`."""
ID_BITS = 18
"""Bits of an id in a merge slot."""
ORDER_BITS = 28
"""Bits of a rule's order in a merge slot, which compares as ranks do; the lowest says "merged one place at a time"."""
TIE_BITS = ORDER_BITS - ID_BITS - 1
FAMILIES = {"cl100k": 1, "qwen2": 2, "gpt2": 3, "deepseek_v3": 4}
"""Pattern families that the kernels know, by the number in `kernels/families.cuh`."""
_EMPTY_SLOT = np.uint64(0xFFFFFFFFFFFFFFFF)
_FIRST_OF_LITERAL = 0x80


@dataclass(frozen=True, slots=True)
class Tables:
    """One tokenizer's tables on the host."""

    arrays: dict[str, NDArray[Any]]
    """By the name of the pointer in `layout.TABLES`; an array of length 0 is a null pointer."""
    numbers: dict[str, int]
    """The other fields of `layout.TABLES`."""
    defines: dict[str, int]
    """Macros that the kernels are compiled with."""

    @property
    def n_bytes(self) -> int:
        """Device memory that the tables take."""
        return sum(array.nbytes for array in self.arrays.values())

    def struct(self, addresses: dict[str, int]) -> NDArray[Any]:
        """The kernels' first argument, given where each array lies."""
        struct = np.zeros((), dtype=TABLES)
        for name, array in self.arrays.items():
            struct[name] = addresses[name] if array.size else 0
        for name, number in self.numbers.items():
            struct[name] = number
        return struct


def check_support(spec: TokenizerSpec) -> None:
    """Raises `UnsupportedTokenizer` with the reason when the device cannot serve the tokenizer exactly."""
    if spec.model_type != "BPE":
        raise UnsupportedTokenizer(f"the model is {spec.model_type}, not BPE")
    if spec.pattern_family not in FAMILIES:
        raise UnsupportedTokenizer(f"no kernel for the pattern family {spec.pattern_family!r}")
    if not spec.byte_level or "ByteLevel" in spec.normalizers:
        raise UnsupportedTokenizer("the vocabulary is not byte-level")
    if spec.normalizers not in {(), ("NFC",)}:
        raise UnsupportedTokenizer(f"the normalizer {spec.normalizer}")
    if spec.dropout > 0:
        raise UnsupportedTokenizer("dropout")
    if spec.continuing_subword_prefix or spec.end_of_word_suffix:
        raise UnsupportedTokenizer("a prefix or suffix that marks parts of words")
    if spec.max_id >= 1 << ID_BITS:
        raise UnsupportedTokenizer(f"ids up to {spec.max_id}; the device holds {ID_BITS} bits")
    device_literals(spec)


def build_tables(data: bytes, spec: TokenizerSpec) -> Tables:
    """The tables of a tokenizer.json. Raises `UnsupportedTokenizer` with the reason."""
    check_support(spec)
    model = read_bpe_model(data)
    literals = device_literals(spec)
    entries = model.entries if model.ignore_merges else closed_entries(model)
    pool = StringPool()
    arrays: dict[str, NDArray[Any]] = _class_arrays(spec, literals)
    numbers = {"max_literal": max(map(len, literals), default=0), "reserved": 0}
    arrays["short_slots"] = short_table(entries, numbers)
    longer = {entry: i for entry, i in entries.items() if SHORT_KEY < len(entry) <= MAX_PRETOKEN}
    arrays["long_slots"] = string_table("long", longer, pool, numbers)
    arrays["literal_slots"] = string_table("literal", literals, pool, numbers)
    arrays["literal_bigrams"] = bigram_bits(literals)
    arrays["merge_slots"], arrays["merge_ids"] = merge_table(model.rules, numbers)
    arrays["byte_ids"] = model.byte_ids
    arrays["pool"] = pool.array()
    defines = {
        "SIDETOK_FAMILY": FAMILIES[spec.pattern_family],
        "SIDETOK_NFC": int("NFC" in spec.normalizers),
        "SIDETOK_RANK_IDS": int(arrays["merge_ids"].size > 0),
    }
    names = [name for name in TABLES.names or () if name in arrays]
    return Tables({name: arrays[name] for name in names}, numbers, defines)


def load_tables(data: bytes, spec: TokenizerSpec, cache_dir: Path | None) -> Tables:
    """`build_tables`, or what an earlier call left in the cache directory; a damaged file is built anew."""
    if cache_dir is None:
        return build_tables(data, spec)
    check_support(spec)
    path = cache_dir / f"tables-{VERSION}-{DIGESTS['classes.bin'][:8]}-{spec.digest}.npz"
    try:
        return _read(path)
    except (OSError, ValueError, KeyError, EOFError):
        tables = build_tables(data, spec)
        _write(path, tables)
        return tables


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


def _class_arrays(spec: TokenizerSpec, literals: dict[bytes, int]) -> dict[str, NDArray[Any]]:
    table = family_classes(spec.pattern_family)
    ascii_codes = np.zeros(256, dtype=np.uint8)
    ascii_codes[:128] = table[:128]
    for literal in literals:
        ascii_codes[literal[0]] |= _FIRST_OF_LITERAL
    pages, blocks = two_stage(table)
    nfc_pages, nfc_blocks = two_stage(normal_form_classes()) if "NFC" in spec.normalizers else (pages[:0], blocks[:0])
    return {
        "ascii": ascii_codes,
        "class_pages": pages,
        "class_blocks": blocks,
        "nfc_pages": nfc_pages,
        "nfc_blocks": nfc_blocks,
    }


def _place(name: str, keys: NDArray[np.uint32], numbers: dict[str, int]) -> NDArray[np.int64]:
    for seed in cuckoo.seeds():
        placement = cuckoo.place(keys, seed)
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


def merge_table(rules: Rules, numbers: dict[str, int]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Slots `left << 46 | right << 28 | order`, and the ids by order when the order does not hold them itself."""
    by_pair = rules.by_pair()
    pairs = np.array(list(by_pair), dtype=np.uint32).reshape(-1, 2)
    left, right = pairs.astype(np.uint64).T
    rank, _product = np.array(list(by_pair.values()), dtype=np.int64).reshape(-1, 2).T
    order = _product_order(rules)
    ids = np.zeros(0, dtype=np.uint32)
    if order is None:
        order, ids = np.arange(len(rules.product)), rules.product.astype(np.uint32)
    order = order << 1 | merged_one_at_a_time(rules)
    owner = _place("merge", pairs, numbers)
    used = owner >= 0
    rule = owner[used]
    slots = np.full(len(owner), _EMPTY_SLOT)
    shift = np.uint64(ORDER_BITS)
    slots[used] = (left[rule] << np.uint64(ID_BITS) | right[rule]) << shift | order[rank[rule]].astype(np.uint64)
    return slots, ids


def _product_order(rules: Rules) -> NDArray[np.int64] | None:
    """`product << TIE_BITS | n` for the n-th rule of a product, if this sorts the rules as their ranks do."""
    if (np.diff(rules.product) < 0).any():
        return None
    first = np.searchsorted(rules.product, rules.product, side="left")
    tie = np.arange(len(rules.product)) - first
    if tie.max(initial=0) >= 1 << TIE_BITS:
        return None
    return rules.product << TIE_BITS | tie


def _write(path: Path, tables: Tables) -> None:
    """Atomically; a cache that cannot be written is no error."""
    parts: dict[str, Any] = {f"array_{k}": v for k, v in tables.arrays.items()}
    parts |= {f"number_{k}": np.int64(v) for k, v in tables.numbers.items()}
    parts |= {f"define_{k}": np.int64(v) for k, v in tables.defines.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            np.savez(file, **parts)
        os.replace(file.name, path)
    except OSError:
        return


def _read(path: Path) -> Tables:
    with np.load(path, allow_pickle=False) as file:
        parts = {name: file[name] for name in file.files}

    def section(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): part for name, part in parts.items() if name.startswith(prefix)}

    numbers = {name: int(value) for name, value in section("number_").items()}
    defines = {name: int(value) for name, value in section("define_").items()}
    return Tables(section("array_"), numbers, defines)
