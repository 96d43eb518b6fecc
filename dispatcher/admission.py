"""Admission: how much may be in flight at once, and how it is shared. Used on the event loop only, so it has no lock.

A request is refused at once when requests or bytes are over their limits, when its answer would come too late, or when
the limits get scarce (`fair_above`) and its client or its model holds more than a fair share of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dispatcher.backlog import Backlog
from dispatcher.errors import TooBusy
from dispatcher.options import DispatcherOptions
from dispatcher.shares import Holding, Shares

REASONS = ("requests", "bytes", "wait", "client_share", "model_share")
MAX_RETRY_AFTER_S = 60.0
EXPIRE_NS = 1_000_000_000


class Slot:
    """What one admitted request holds."""

    __slots__ = ("_admission", "_client", "_model", "n_bytes")

    def __init__(self, admission: Admission, n_bytes: int, client: Holding | None = None) -> None:
        self._admission = admission
        self._client = client
        self._model: Holding | None = None
        self.n_bytes = n_bytes
        if client is not None:
            client.n_requests += 1
            client.n_bytes += n_bytes

    def grow(self, n_bytes: int) -> None:
        """Take more bytes (a body of unknown length), or raise `TooBusy`."""
        self._admission.check_bytes(n_bytes, self.n_bytes)
        if self._client is not None:
            self._admission.check_client(self._client, n_bytes)
            self._client.n_bytes += n_bytes
        self._admission.n_bytes += n_bytes
        self.n_bytes += n_bytes

    def assign(self, model: str) -> None:
        """Count the request for its model, too, once that is known and all bytes are there; or raise `TooBusy`."""
        self._model = self._admission.admit_model(model, self.n_bytes)

    def release(self) -> None:
        """Give back the slot and its bytes."""
        self._admission.n_requests -= 1
        self._admission.n_bytes -= self.n_bytes
        if (client := self._client) is not None:
            client.n_requests -= 1
            client.n_bytes -= self.n_bytes
        if (model := self._model) is not None:
            model.n_requests -= 1
            model.n_bytes -= self.n_bytes


class Uncounted:
    """Stands for a slot where nobody counts: the caller bounds what it has in flight."""

    __slots__ = ("n_bytes",)

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes

    def release(self) -> None:
        """Nothing to give back."""


class Admission:
    """Counts requests and body bytes in flight, and refuses what is over the limits."""

    def __init__(
        self, options: DispatcherOptions, n_workers: int = 1, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`clock` gives nanoseconds."""
        self.max_requests = options.max_in_flight
        self.max_bytes = options.max_in_flight_bytes
        self.n_requests = 0
        self.n_bytes = 0
        self.shed: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.backlog = Backlog(n_workers)
        self.clients = Shares(self.max_requests, self.max_bytes)
        self.models = Shares(self.max_requests, self.max_bytes)
        self._max_wait_s = options.max_wait_s
        self._fair_requests = options.fair_above * self.max_requests
        self._fair_bytes = options.fair_above * self.max_bytes
        self._clock = clock
        self._now_ns = clock()
        """As of the last look; that is close enough to tell who asked lately."""
        self._expired_ns = 0

    def admit(self, n_bytes: int, client: str = "", timeout_s: float = 0.0) -> Slot:
        """Take a slot and `n_bytes`, or raise `TooBusy`. Whoever is admitted releases the slot once.

        `timeout_s` is how long the answer is of use; 0 = always.
        """
        holding = self.clients.of(client, self._now_ns)
        if self.n_requests >= self.max_requests:
            self._refuse(
                "requests", f"{self.max_requests} requests are in flight; retry later or raise --max-in-flight."
            )
        self.check_bytes(n_bytes)
        if self.backlog.knows(n_bytes):
            self._check_wait(n_bytes, timeout_s)
        self.n_requests += 1
        self.n_bytes += n_bytes
        if self.n_requests > self._fair_requests or self.n_bytes > self._fair_bytes:
            try:
                self._check_share(self.clients, holding, n_bytes, "client_share", "client")
            except TooBusy:
                self.n_requests -= 1
                self.n_bytes -= n_bytes
                raise
        return Slot(self, n_bytes, holding)

    def admit_model(self, model: str, n_bytes: int) -> Holding:
        """The holding of a model with one more request, which is counted for all already; or raise `TooBusy`."""
        holding = self.models.of(model, self._now_ns)
        self._check_share(self.models, holding, n_bytes, "model_share", "model")
        holding.n_requests += 1
        holding.n_bytes += n_bytes
        return holding

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

    def check_client(self, holding: Holding, n_bytes: int) -> None:
        """Raise `TooBusy` when `n_bytes` more are too much for the client of a request."""
        scarce = self.n_bytes + n_bytes > self._fair_bytes
        if scarce and not self.clients.fits_bytes(holding, n_bytes, holding.n_requests - 1):
            self._refuse_share("client_share", "client")

    def observe(self) -> None:
        """Look at the clock. Called periodically."""
        self._now_ns = now_ns = self._clock()
        self.backlog.observe(now_ns)
        if now_ns - self._expired_ns > EXPIRE_NS:
            self._expired_ns = now_ns
            self.clients.expire(now_ns)
            self.models.expire(now_ns)

    def _check_wait(self, n_bytes: int, timeout_s: float) -> None:
        wait_s = self.backlog.lane(n_bytes).wait_s
        limit_s = min(self._max_wait_s or timeout_s, timeout_s or self._max_wait_s)
        if limit_s and wait_s > limit_s:
            self._refuse("wait", f"The answer would take about {wait_s:.1f} s; retry later.", wait_s - limit_s / 2)

    def _check_share(self, shares: Shares, holding: Holding, n_bytes: int, reason: str, who: str) -> None:
        """Raise for a request that is counted for all, but not for this holding yet."""
        if (self.n_requests > self._fair_requests and not shares.fits_request(holding)) or (
            self.n_bytes > self._fair_bytes and not shares.fits_bytes(holding, n_bytes, holding.n_requests)
        ):
            self._refuse_share(reason, who)

    def _refuse_share(self, reason: str, who: str) -> None:
        self._refuse(reason, f"This {who} already holds its share of what may be in flight; retry later.")

    def _refuse(self, reason: str, message: str, retry_after_s: float | None = None) -> None:
        self.shed[reason] += 1
        if retry_after_s is None:
            retry_after_s = self.backlog.small.wait_s / 2
        raise TooBusy(message, reason, min(MAX_RETRY_AFTER_S, max(1.0, retry_after_s)))
