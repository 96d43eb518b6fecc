"""Byte-pair merges one at a time, as the reference does them."""

from __future__ import annotations

import math
from collections.abc import Mapping


def merge(symbols: list[tuple[int, int]], rules: Mapping[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """What (position, id) pairs become, one merge at a time: the lowest rank first, the leftmost of several.

    `rules`: (left, right) -> (rank, product).
    """
    result = list(symbols)

    def rank(at: int) -> float:
        rule = rules.get((result[at][1], result[at + 1][1])) if 0 <= at < len(result) - 1 else None
        return rule[0] if rule else math.inf

    ranks = [rank(at) for at in range(len(result) - 1)]
    while (lowest := min(ranks, default=math.inf)) < math.inf:
        at = ranks.index(lowest)
        product = rules[result[at][1], result[at + 1][1]][1]
        result[at : at + 2] = [(result[at][0], product)]
        # The pair itself is gone; those before and behind it have a new part.
        ranks[max(at - 1, 0) : at + 2] = [rank(i) for i in (at - 1, at) if 0 <= i < len(result) - 1]
    return result
