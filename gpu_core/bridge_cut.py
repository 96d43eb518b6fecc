"""Safe cuts of BPE over characters: between neighbours that no rule can join, and at the ends of runs of added tokens.

text    t h e _ c a t \\n \\n x      `\\n` is an added token of any length
cuts           |     |     |        not between the two line ends: where the run begins decides its tokens
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpu_core.bridge_tables import Joins
from gpu_core.literals import device_literals
from gpu_core.run_literals import RunLiteral, split_literals
from gpu_core.safe_cut import Cuts, CutSearch, SafeCuts
from gpu_core.spec import TokenizerSpec
from gpu_core.tables import Tables


def cuts_of(spec: TokenizerSpec, tables: Tables) -> Cuts:
    """The safe cuts of a tokenizer that the device serves."""
    if spec.pattern_family == "sentencepiece":
        runs, literals = split_literals(spec)
        return bridge_cuts(Joins(tables.arrays), runs, literals)
    return SafeCuts(spec.pattern_family, device_literals(spec), bool(spec.normalizers))


def bridge_cuts(joins: Joins, runs: list[RunLiteral], literals: Iterable[bytes]) -> Cuts:
    """Cuts where neither a token of the model nor an added token can lie across."""
    every = np.array([ord(run.character) for run in runs], dtype=np.int64)
    # Every character of such a run belongs to an added token.
    whole = np.array([ord(run.character) for run in runs if run.shortest == 1], dtype=np.int64)

    def allowed(points: NDArray[np.int64]) -> NDArray[np.bool_]:
        x, y = points[:-1], points[1:]
        same_run: NDArray[np.bool_] = (x == y) & np.isin(x, every)
        apart: NDArray[np.bool_] = ~joins.many(x, y) | np.isin(x, whole) | np.isin(y, whole)
        return apart & ~same_run

    return CutSearch(literals, allowed)
