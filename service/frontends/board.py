"""How much each frontend has to do, in memory that all of them see: who has more lets the others go first.

Beside it each frontend counts there, while its event loop turns: the keeper sees who hangs.
"""

from __future__ import annotations

import mmap
import os

ABSENT = -1
"""In the place of connections: the frontend accepts none."""
_ITEM_BYTES = 4
_N_COLUMNS = 3
MAX_BEATS = 1 << 30


class Board:
    """Connections, requests in flight and beats of each frontend, counted from 1.

    Each writes its own; the keeper those of one that died.
    """

    def __init__(self, fd: int, n_frontends: int) -> None:
        """`fd`: the memory that `make` made. It may be closed, the mapping stays."""
        self._n = n_frontends
        self._memory = mmap.mmap(fd, _N_COLUMNS * n_frontends * _ITEM_BYTES)
        self._numbers = memoryview(self._memory).cast("i")

    @classmethod
    def make(cls, n_frontends: int) -> tuple[Board, int]:
        """A board on which everybody is absent, and the descriptor that others open it by."""
        fd = os.memfd_create("sidetok-frontends")
        os.ftruncate(fd, _N_COLUMNS * n_frontends * _ITEM_BYTES)
        board = cls(fd, n_frontends)
        for number in range(1, n_frontends + 1):
            board.write(number, ABSENT)
        return board, fd

    def write(self, number: int, n_connections: int, n_in_flight: int = 0) -> None:
        """Say what a frontend has, or that it is `ABSENT`."""
        self._numbers[number - 1] = n_connections
        self._numbers[self._n + number - 1] = n_in_flight

    def read(self, number: int) -> tuple[int, int]:
        """Connections and requests in flight of a frontend."""
        return self._numbers[number - 1], self._numbers[self._n + number - 1]

    def beat(self, number: int) -> None:
        """Show that a frontend moves."""
        at = 2 * self._n + number - 1
        self._numbers[at] = self._numbers[at] % MAX_BEATS + 1

    def beats(self, number: int) -> int:
        """Another number whenever a frontend moved since; 0 = it did not yet."""
        return self._numbers[2 * self._n + number - 1]

    def clear(self, number: int) -> None:
        """A frontend ended."""
        self.write(number, ABSENT)
        self._numbers[2 * self._n + number - 1] = 0

    def has_less(self, n_connections: int, n_in_flight: int) -> bool:
        """Whether a frontend that accepts has fewer connections than these, and not more in flight."""
        numbers, n = self._numbers, self._n
        return any(ABSENT < numbers[i] < n_connections and numbers[n + i] <= n_in_flight for i in range(n))
