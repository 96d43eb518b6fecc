"""Admission: how much may be in flight at once. Used on the event loop only, so it needs no lock."""

from __future__ import annotations

from dispatcher.errors import TooBusy
from dispatcher.options import DispatcherOptions


class Admission:
    """Counts requests and body bytes in flight, and refuses what is over the limits."""

    def __init__(self, options: DispatcherOptions) -> None:
        self.max_requests = options.max_in_flight
        self.max_bytes = options.max_in_flight_bytes
        self.n_requests = 0
        self.n_bytes = 0
        self.shed: dict[str, int] = {"requests": 0, "bytes": 0}

    def admit(self, n_bytes: int) -> None:
        """Take a slot and `n_bytes`, or raise `TooBusy`. Whoever is admitted calls `release` once."""
        if self.n_requests >= self.max_requests:
            self._refuse("requests", f"{self.max_requests} requests are in flight; retry later or raise --max-in-flight.")
        self._check_bytes(n_bytes)
        self.n_requests += 1
        self.n_bytes += n_bytes

    def grow(self, n_bytes: int) -> None:
        """Take more bytes for a request that is already admitted (a body of unknown length), or raise `TooBusy`."""
        self._check_bytes(n_bytes)
        self.n_bytes += n_bytes

    def release(self, n_bytes: int) -> None:
        """Give back a slot and all bytes that were taken for it."""
        self.n_requests -= 1
        self.n_bytes -= n_bytes

    def _check_bytes(self, n_bytes: int) -> None:
        """A single body larger than the limit is admitted when nothing else is in flight, else it never would be."""
        if self.n_bytes and self.n_bytes + n_bytes > self.max_bytes:
            self._refuse("bytes", f"{self.max_bytes} body bytes are in flight; retry later or raise --max-in-flight-bytes.")

    def _refuse(self, reason: str, message: str) -> None:
        self.shed[reason] += 1
        raise TooBusy(message, reason)
