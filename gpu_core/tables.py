"""Everything that the kernels look up for one tokenizer, built once from its file and cached on disk by digest."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.bpe_file import read_bpe_model
from gpu_core.bridge_tables import build_bridge_tables, check_bridge_support
from gpu_core.classes import DIGESTS, family_classes, normal_form_classes, two_stage
from gpu_core.closed import closed_entries
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import BRIDGE_TILE, MAX_PRETOKEN, TABLES, TILE
from gpu_core.literals import NEEDS_CPU, bigram_bits, device_literals
from gpu_core.slots import ID_BITS, SHORT_KEY, StringPool, merge_table, short_table, string_table
from gpu_core.spec import TokenizerSpec

VERSION = 6
"""Changes whenever a table's content or layout does, so that an old cache is not read."""
FAMILIES = {"cl100k": 1, "qwen2": 2, "gpt2": 3, "deepseek_v3": 4}
"""Pattern families that the kernels know, by the number in `kernels/window.cuh`."""
BRIDGE_FAMILY = 5
"""The number of BPE over characters, whose text nothing splits."""
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

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], numbers: dict[str, int], defines: dict[str, int]) -> Tables:
        """The same with null pointers for the arrays that the tokenizer's family does without."""
        empty = np.zeros(0, dtype=np.uint8)
        names = [name for name in TABLES.names or () if TABLES[name] == np.uint64]
        return cls({name: arrays.get(name, empty) for name in names}, numbers, defines)

    @property
    def n_bytes(self) -> int:
        """Device memory that the tables take."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def tile(self) -> int:
        """Bytes of text whose pre-tokens a block of the kernels owns."""
        return BRIDGE_TILE if self.defines["SIDETOK_FAMILY"] == BRIDGE_FAMILY else TILE

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
    if spec.max_model_id >= 1 << ID_BITS:
        raise UnsupportedTokenizer(f"ids of the vocabulary up to {spec.max_model_id}; the device holds {ID_BITS} bits")
    if spec.max_id >= NEEDS_CPU:
        raise UnsupportedTokenizer(f"ids up to {spec.max_id}; the device holds 31 bits")
    if spec.pattern_family == "sentencepiece":
        return check_bridge_support(spec)
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
    device_literals(spec)


def build_tables(data: bytes, spec: TokenizerSpec) -> Tables:
    """The tables of a tokenizer.json. Raises `UnsupportedTokenizer` with the reason."""
    check_support(spec)
    if spec.pattern_family == "sentencepiece":
        arrays, numbers = build_bridge_tables(data, spec)
        return Tables.of(arrays, numbers, _defines(spec, BRIDGE_FAMILY, arrays))
    model = read_bpe_model(data)
    literals = device_literals(spec)
    entries = model.entries if model.ignore_merges else closed_entries(model)
    pool = StringPool()
    arrays = _class_arrays(spec, literals)
    numbers = {"max_literal": max(map(len, literals), default=0), "n_runs": 0, "pair_a": 0, "pair_b": 0}
    arrays["short_slots"] = short_table(entries, numbers)
    longer = {entry: i for entry, i in entries.items() if SHORT_KEY < len(entry) <= MAX_PRETOKEN}
    arrays["long_slots"] = string_table("long", longer, pool, numbers)
    arrays["literal_slots"] = string_table("literal", literals, pool, numbers)
    arrays["literal_bigrams"] = bigram_bits(literals)
    arrays["merge_slots"] = merge_table(model.rules, numbers)
    arrays["byte_ids"] = model.byte_ids
    arrays["pool"] = pool.array()
    return Tables.of(arrays, numbers, _defines(spec, FAMILIES[spec.pattern_family], arrays))


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


def _defines(spec: TokenizerSpec, family: int, arrays: dict[str, NDArray[Any]]) -> dict[str, int]:
    return {
        "SIDETOK_FAMILY": family,
        "SIDETOK_NFC": int("NFC" in spec.normalizers),
        "SIDETOK_RANK_IDS": int(arrays["merge_slots"].ndim == 2),
    }


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
