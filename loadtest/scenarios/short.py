"""Prompts of 1 to 16 KiB, log-uniform, an equal share from each corpus, none sent twice."""

from __future__ import annotations

from loadtest.plan import PlanBuilder
from loadtest.scenarios.scenario import Scenario, Setting


def build(setting: Setting, builder: PlanBuilder) -> None:
    """A group for each corpus."""
    at_ns = setting.times()
    for cut in setting.dealer.in_turn(setting.short_lengths(len(at_ns))):
        builder.add(cut.corpus, at_ns[cut.rows], cut.start, cut.length)


SHORT = Scenario(
    "short",
    "1 to 16 KiB, log-uniform, equal shares of the corpora, never repeated",
    rate=500,
    arrivals="gamma:1.2",
    max_document_bytes=1 << 14,
    build=build,
)
