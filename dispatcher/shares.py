"""Fair shares of a budget: who holds how much of it, and how much each may hold when it gets scarce."""

from __future__ import annotations

RECENT_NS = 10_000_000_000
"""Who asked for something in so much time counts as one who wants a share, also while holding nothing."""
MAX_HOLDERS = 4096
"""More than these are not told apart."""


class Holding:
    """What one client, or one model, holds."""

    __slots__ = ("n_bytes", "n_requests", "seen_ns")

    def __init__(self) -> None:
        self.n_requests = 0
        self.n_bytes = 0
        self.seen_ns = 0


class Shares:
    """Holdings by name. A share is the budget divided by the number of those who want some of it."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._holdings: dict[str, Holding] = {}

    def of(self, name: str, now_ns: int) -> Holding:
        """The holding of a name that asks for something now."""
        holding = self._holdings.get(name)
        if holding is None:
            if len(self._holdings) >= MAX_HOLDERS:
                name = ""
            holding = self._holdings.setdefault(name, Holding())
        holding.seen_ns = now_ns
        return holding

    def fits_request(self, holding: Holding) -> bool:
        """Whether a holding may have one more request: one always, else up to its share."""
        return holding.n_requests == 0 or (holding.n_requests + 1) * len(self._holdings) <= self._max_requests

    def fits_bytes(self, holding: Holding, n_bytes: int, n_others: int) -> bool:
        """Whether a holding of `n_others` other requests may have so many more bytes: a lone request any number."""
        n = len(self._holdings)
        return n_others == 0 or n == 1 or (holding.n_bytes + n_bytes) * n <= self._max_bytes

    def expire(self, now_ns: int) -> None:
        """Forget who holds nothing and did not ask lately. Called periodically."""
        old = [
            name
            for name, holding in self._holdings.items()
            if holding.n_requests == 0 and now_ns - holding.seen_ns > RECENT_NS
        ]
        for name in old:
            del self._holdings[name]

    def __len__(self) -> int:
        return len(self._holdings)
