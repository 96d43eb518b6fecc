"""The model part of a byte-level tokenizer.json as arrays: entries as bytes, merge rules as ids and ranks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.errors import UnsupportedTokenizer


@dataclass(frozen=True, slots=True)
class Rules:
    """Merge rules in the order of the file: `left[r] + right[r]` becomes `product[r]` at rank r."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    product: NDArray[np.int64]

    def by_pair(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(left, right) -> (rank, product); the last rule of a pair counts, as in the reference."""
        rows = zip(self.left.tolist(), self.right.tolist(), self.product.tolist(), strict=True)
        return {(left, right): (rank, product) for rank, (left, right, product) in enumerate(rows)}


@dataclass(frozen=True, slots=True)
class BpeModel:
    """A byte-level BPE model."""

    entries: dict[bytes, int]
    """Byte strings that the vocabulary holds; entries that no text can spell are left out."""
    byte_ids: NDArray[np.uint32]
    """Id of each single byte, shape (256,)."""
    rules: Rules
    ignore_merges: bool


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's encoder).

    Printable ones stand for themselves.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def read_bpe_model(data: bytes) -> BpeModel:
    """Read a tokenizer.json that `read_spec` has accepted. Raises `UnsupportedTokenizer` when a byte has no entry."""
    model: dict[str, Any] = json.loads(data)["model"]
    alphabet, vocab = byte_alphabet(), model["vocab"]
    entries = {
        bytes(alphabet[char] for char in content): i for content, i in vocab.items() if alphabet.keys() >= set(content)
    }
    missing = [byte for byte in range(256) if bytes([byte]) not in entries]
    if missing:
        raise UnsupportedTokenizer(f"the vocabulary lacks {len(missing)} of the 256 single bytes")
    byte_ids = np.array([entries[bytes([byte])] for byte in range(256)], dtype=np.uint32)
    return BpeModel(entries, byte_ids, read_rules(model["merges"], vocab), bool(model.get("ignore_merges")))


def entry_lengths(vocab: dict[str, int], n_ids: int) -> NDArray[np.int32]:
    """Bytes of each entry by id, shape (n_ids,); 0 where no text can spell one. Much faster than `read_bpe_model`."""
    spells = re.compile("[" + re.escape("".join(byte_alphabet())) + "]*").fullmatch
    lengths = np.zeros(n_ids, dtype=np.int32)
    lengths[list(vocab.values())] = [len(content) if spells(content) else 0 for content in vocab]
    return lengths


def read_rules(merges: list[Any], vocab: dict[str, int]) -> Rules:
    """The merges of a file, pairs or strings with a space; a version comment among strings is none."""
    pairs = [
        merge.split(" ") if isinstance(merge, str) else merge
        for merge in merges
        if not (isinstance(merge, str) and merge.startswith("#version"))
    ]
    left = np.array([vocab[pair[0]] for pair in pairs], dtype=np.int64)
    right = np.array([vocab[pair[1]] for pair in pairs], dtype=np.int64)
    product = np.array([vocab[pair[0] + pair[1]] for pair in pairs], dtype=np.int64)
    return Rules(left, right, product)
