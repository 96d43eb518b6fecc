"""How many connections each frontend has, in memory that all of them see: who has most lets the others go first."""

from __future__ import annotations

import mmap
import os

ABSENT = -1
"""Of a frontend that accepts no connections."""
_ITEM_BYTES = 4


class Board:
    """One number for each frontend, counted from 1. Each writes its own; the keeper that of one that died."""

    def __init__(self, fd: int, n_frontends: int) -> None:
        """`fd`: the memory that `make` made; it is closed here, the mapping stays."""
        self._memory = mmap.mmap(fd, n_frontends * _ITEM_BYTES)
        self._counts = memoryview(self._memory).cast("i")

    @classmethod
    def make(cls, n_frontends: int) -> tuple[Board, int]:
        """A board on which everybody is absent, and the descriptor that others open it by."""
        fd = os.memfd_create("sidetok-frontends")
        os.ftruncate(fd, n_frontends * _ITEM_BYTES)
        board = cls(fd, n_frontends)
        for number in range(1, n_frontends + 1):
            board.write(number, ABSENT)
        return board, fd

    def write(self, number: int, n_connections: int) -> None:
        """Say how many connections a frontend has, or that it is `ABSENT`."""
        self._counts[number - 1] = n_connections

    def fewest(self, but: int) -> int | None:
        """The fewest connections of the frontends that accept, `but` one aside; None when there is no other."""
        counts = [count for number, count in enumerate(self._counts, 1) if number != but and count != ABSENT]
        return min(counts, default=None)
