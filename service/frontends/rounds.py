"""Scrapes: whoever is asked for metrics asks the keeper, which asks all frontends and answers with their sums."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from service.frontends.awaited import Awaited
from service.frontends.exposition import Family, Totals, families_of
from service.frontends.kept import READY, Kept

REPORT_S = 1.0
"""How long a scrape waits for a frontend; of one that is later, what it reported before is taken."""
UNASKED = 0
"""The round of a report that nobody asked for: the last one of a frontend."""


class Rounds:
    """Rounds of reports. Used on the event loop of the keeper."""

    def __init__(self, n_frontends: int) -> None:
        self.n_restarts = 0
        """Frontends that ended and were started again."""
        self._n_frontends = n_frontends
        self._totals = Totals()
        self._awaited = Awaited()
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def scrape(self, asker: Kept, everybody: Collection[Kept], question: int) -> None:
        """Answer one question of a frontend with the exposition of all."""
        n_reported = await self._awaited.ask("report", everybody, REPORT_S)
        own = self._own(sum(kept.state == READY for kept in everybody), n_reported)
        asker.channel.send("scrape", [question, self._totals.render(own).decode()])

    def report(self, kept: Kept, number: int, families: list[Any]) -> None:
        """A frontend reported."""
        self._totals.report(kept.number, [tuple(family) for family in families])
        self._awaited.answered(number, kept)

    def lose(self, kept: Kept) -> None:
        """A frontend ended: what it had counted stays."""
        self._totals.end(kept.number)
        self._awaited.lose(kept)

    def _own(self, n_ready: int, n_reported: int) -> list[Family]:
        """What the keeper says of itself and of this scrape."""
        restarts = CounterMetricFamily("sidetok_frontend_restarts", "Frontends that ended and were started again.")
        restarts.add_metric((), self.n_restarts)
        gauges = (
            GaugeMetricFamily("sidetok_frontends", "Frontends that there should be.", value=self._n_frontends),
            GaugeMetricFamily("sidetok_frontends_ready", "Frontends that serve.", value=n_ready),
            GaugeMetricFamily(
                "sidetok_frontends_reported",
                "Frontends whose figures of this moment are in this scrape; of others there are those before.",
                value=n_reported,
            ),
        )
        return families_of([*gauges, restarts, *self._process.collect()])
