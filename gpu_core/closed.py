"""Which vocabulary entries merging reaches, BPE(entry) = [entry]: without `ignore_merges` only these are looked up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_core.bpe_file import BpeModel, Rules

_NO_RULE = np.int64(1) << np.int64(40)
_SHIFT = 20
Entry = TypeVar("Entry", bytes, str)


def closed_entries(model: BpeModel) -> dict[bytes, int]:
    """The entries whose own bytes merge to exactly the entry; all entries of one length are merged side by side."""

    def symbols_of(entries: list[bytes]) -> NDArray[np.int64]:
        rows = np.frombuffer(b"".join(entries), np.uint8).reshape(len(entries), -1)
        return model.byte_ids[rows].astype(np.int64)

    return closed_of(model.entries, model.rules, symbols_of)


def closed_of(
    entries: Mapping[Entry, int], rules: Rules, symbols_of: Callable[[list[Entry]], NDArray[np.int64]]
) -> dict[Entry, int]:
    """The same for entries of any kind; `symbols_of` gives a row of first symbols for each of some of one length."""
    lookup = PairLookup(rules)
    by_length: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_length[len(entry)].append(entry)
    closed: dict[Entry, int] = {}
    for same in by_length.values():
        result = merge_rows(symbols_of(same), lookup)
        ids = np.array([entries[entry] for entry in same])
        closed |= {same[i]: int(ids[i]) for i in np.flatnonzero(result == ids)}
    return closed


class PairLookup:
    """Ranks and products of many pairs at once."""

    def __init__(self, rules: Rules) -> None:
        keys = rules.left << _SHIFT | rules.right
        order = np.argsort(keys, kind="stable")
        # The last rule of a repeated pair is the one that counts.
        last = np.flatnonzero(np.diff(keys[order], append=-1))
        self.keys, self.rank = keys[order][last], order[last]
        self.product = rules.product

    def ranks(self, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rank of each pair, or a number above all ranks; a negative id is in no rule."""
        wanted = left << _SHIFT | right
        if not len(self.keys):
            return np.full(wanted.shape, _NO_RULE)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where((self.keys[at] == wanted) & (left >= 0) & (right >= 0), self.rank[at], _NO_RULE)


def merge_rows(symbols: NDArray[np.int64], lookup: PairLookup) -> NDArray[np.int64]:
    """The id that each row of symbols becomes, -1 when more than one is left.

    One merge a round: lowest rank, leftmost.
    """
    result = np.full(len(symbols), -1, dtype=np.int64)
    rows = np.arange(len(symbols))
    ranks = lookup.ranks(symbols[:, :-1], symbols[:, 1:])
    while symbols.shape[1] > 1:
        at = ranks.argmin(axis=1)
        lowest = np.take_along_axis(ranks, at[:, None], axis=1)[:, 0]
        alive = lowest != _NO_RULE
        rows, symbols, ranks, at, lowest = rows[alive], symbols[alive], ranks[alive], at[alive], lowest[alive]
        symbols[np.arange(len(rows)), at] = lookup.product[lowest]
        keep = np.arange(symbols.shape[1])[None, :] != at[:, None] + 1
        width = symbols.shape[1] - 1
        symbols = symbols[keep].reshape(len(rows), width)
        ranks = ranks[keep[:, 1:]].reshape(len(rows), width - 1)
        for column in (at - 1, at):
            there = np.flatnonzero((column >= 0) & (column < symbols.shape[1] - 1))
            c = column[there]
            ranks[there, c] = lookup.ranks(symbols[there, c], symbols[there, c + 1])
    result[rows] = symbols[:, 0]
    return result
