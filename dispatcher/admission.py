"""Admission: how much may be in flight at once. Used on the event loop only, so it needs no lock."""

from __future__ import annotations

from dispatcher.errors import TooBusy
from dispatcher.options import DispatcherOptions


class Slot:
    """What one admitted request holds."""

    __slots__ = ("_admission", "n_bytes")

    def __init__(self, admission: Admission, n_bytes: int) -> None:
        self._admission = admission
        self.n_bytes = n_bytes

    def grow(self, n_bytes: int) -> None:
        """Take more bytes (a body of unknown length), or raise `TooBusy`."""
        self._admission.check_bytes(n_bytes, self.n_bytes)
        self._admission.n_bytes += n_bytes
        self.n_bytes += n_bytes

    def release(self) -> None:
        """Give back the slot and its bytes."""
        self._admission.n_requests -= 1
        self._admission.n_bytes -= self.n_bytes


class Admission:
    """Counts requests and body bytes in flight, and refuses what is over the limits."""

    def __init__(self, options: DispatcherOptions) -> None:
        self.max_requests = options.max_in_flight
        self.max_bytes = options.max_in_flight_bytes
        self.n_requests = 0
        self.n_bytes = 0
        self.shed: dict[str, int] = {"requests": 0, "bytes": 0}

    def admit(self, n_bytes: int) -> Slot:
        """Take a slot and `n_bytes`, or raise `TooBusy`. Whoever is admitted releases the slot once."""
        if self.n_requests >= self.max_requests:
            self._refuse(
                "requests", f"{self.max_requests} requests are in flight; retry later or raise --max-in-flight."
            )
        self.check_bytes(n_bytes)
        return self.hold(n_bytes)

    def hold(self, n_bytes: int) -> Slot:
        """Count what is there already and cannot be refused: an answer that its client does not read."""
        self.n_requests += 1
        self.n_bytes += n_bytes
        return Slot(self, n_bytes)

    def check_bytes(self, n_bytes: int, own_bytes: int = 0) -> None:
        """Raise `TooBusy` when `n_bytes` more would be too much for a request that already has `own_bytes`.

        A single body larger than the limit is admitted when nothing else is in flight, else it never would be.
        """
        if self.n_bytes > own_bytes and self.n_bytes + n_bytes > self.max_bytes:
            self._refuse(
                "bytes", f"{self.max_bytes} body bytes are in flight; retry later or raise --max-in-flight-bytes."
            )

    def _refuse(self, reason: str, message: str) -> None:
        self.shed[reason] += 1
        raise TooBusy(message, reason)
