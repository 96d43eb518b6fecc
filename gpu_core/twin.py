"""Plain twin of the whole pipeline: what the kernels must answer, one merge at a time. For tests, not for use."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpu_core.bpe_file import read_bpe_model
from gpu_core.closed import closed_entries
from gpu_core.layout import MAX_PRETOKEN
from gpu_core.literals import NEEDS_CPU, device_literals
from gpu_core.normal_form import passes_quick_check
from gpu_core.plain_merge import merge
from gpu_core.spec import TokenizerSpec
from gpu_core.tables import check_support
from gpu_core.twin_split import Classified, Mask, classify, split


@dataclass(frozen=True, slots=True)
class TwinResult:
    """One document: its tokens, and whether the device may answer it."""

    ids: list[int]
    token_starts: list[int]
    """Byte position of each token's first byte in the document."""
    needs_cpu: bool


class Twin:
    """One tokenizer. Raises `UnsupportedTokenizer` like the device's tables."""

    def __init__(self, data: bytes, spec: TokenizerSpec) -> None:
        check_support(spec)
        model = read_bpe_model(data)
        self.family, self.is_nfc = spec.pattern_family, "NFC" in spec.normalizers
        self.literals = device_literals(spec)
        self.entries = model.entries if model.ignore_merges else closed_entries(model)
        self.byte_ids, self.rules = model.byte_ids.tolist(), model.rules.by_pair()

    def encode(self, document: bytes) -> TwinResult:
        """All stages on one document."""
        starts, literals, classified = self.starts(document)
        if not classified.valid:
            return TwinResult([], [], True)
        needs_cpu = self.is_nfc and not passes_quick_check(document.decode())
        needs_cpu |= any(token & NEEDS_CPU for token in literals.values()) or self.literals_overlap(document)
        ids: list[int] = []
        token_starts: list[int] = []
        for begin, end in itertools.pairwise([*np.flatnonzero(starts).tolist(), len(document)]):
            if begin in literals:
                symbols = [(begin, literals[begin] & ~NEEDS_CPU)]
            elif end - begin > MAX_PRETOKEN:
                return TwinResult([], [], True)
            else:
                symbols = [(begin + at, symbol) for at, symbol in self.encode_pretoken(document[begin:end])]
            token_starts += [at for at, _id in symbols]
            ids += [symbol for _at, symbol in symbols]
        return TwinResult(ids, token_starts, needs_cpu)

    def starts(self, document: bytes) -> tuple[Mask, dict[int, int], Classified]:
        """First bytes of pre-tokens; the added tokens by position; the classes with added tokens blotted out."""
        border = np.zeros(len(document) + 1, dtype=bool)
        border[0] = True
        classified = classify(document, self.family)
        literals = self.find_literals(document)
        codes = classified.codes.copy()
        for at, length in literals:
            codes[at : at + length] = 0
            border[at + length] = True
        classified = Classified(document, codes, classified.lead, classified.valid)
        starts = split(classified, border[:-1], self.family)
        starts[[at for at, _length in literals]] = True
        return starts, {at: self.literals[document[at : at + length]] for at, length in literals}, classified

    def find_literals(self, document: bytes) -> list[tuple[int, int]]:
        """Positions and lengths of added tokens: leftmost first, the longest of several."""
        found, end = [], 0
        for at, length in longest_matches(document, self.literals):
            if at >= end:
                found.append((at, length))
                end = at + length
        return found

    def literals_overlap(self, document: bytes) -> bool:
        """Whether the longest matches of two bytes share a byte."""
        matches = longest_matches(document, self.literals)
        return any(a + length > b for (a, length), (b, _length) in itertools.pairwise(matches))

    def encode_pretoken(self, text: bytes) -> list[tuple[int, int]]:
        """(position, id) of each token: the whole pre-token if it is an entry, else what the merges leave."""
        if text in self.entries:
            return [(0, self.entries[text])]
        symbols = [(at, self.byte_ids[byte]) for at, byte in enumerate(text)]
        return merge(symbols, self.rules)


def longest_matches(document: bytes, literals: Mapping[bytes, int]) -> list[tuple[int, int]]:
    """Position and length of the longest literal at each byte where there is one."""
    first_bytes = {literal[0] for literal in literals}
    lengths = sorted({len(literal) for literal in literals}, reverse=True)
    found = []
    for at in (at for at, byte in enumerate(document) if byte in first_bytes):
        here = document[at : at + lengths[0]]
        length = next((n for n in lengths if n <= len(here) and here[:n] in literals), 0)
        found += [(at, length)] if length else []
    return found
