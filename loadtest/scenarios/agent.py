"""Agents: sessions that send their whole conversation again with every call, at intervals of thought."""

from __future__ import annotations

import numpy as np

from loadtest.plan import CONVERSATION, PlanBuilder
from loadtest.scenarios.scenario import Scenario, Setting
from loadtest.scenarios.session import MAX_CONTEXT_BYTES, MAX_CONTEXT_TOKENS, grow, open_session

MEDIAN_TOKENS = 119_000
SPREAD = 0.6
"""Standard deviation of the logarithm of a session's first context."""


def build(setting: Setting, builder: PlanBuilder) -> None:
    """As many sessions as give the rate at the think time; the time between two calls of one is Gamma distributed."""
    think_s = setting.options.think_time_s
    n_sessions = max(1, round(setting.rate * think_s))
    mean_gap_s = n_sessions / setting.rate
    for number in range(n_sessions):
        tokens = min(MEDIAN_TOKENS * float(np.exp(setting.rng.normal(0, SPREAD))), 0.9 * MAX_CONTEXT_TOKENS)
        session = open_session(setting, number, tokens)
        at_s = setting.rng.uniform(0, mean_gap_s)
        while at_s < setting.total_s:
            start, length = session.pieces()
            builder.add(
                "conversation",
                np.array([int(at_s * 1e9)]),
                np.array(start),
                np.array(length),
                counts=np.array([len(start)]),
                kind=CONVERSATION,
                client=np.array([number]),
            )
            grow(setting, session)
            at_s += float(setting.arrivals.gaps(1, setting.rng)[0]) * mean_gap_s


AGENT = Scenario(
    "agent",
    "growing conversations of 119k tokens (median), 400 to 875 new ones per call",
    rate=2,
    arrivals="gamma:2",
    max_document_bytes=MAX_CONTEXT_BYTES,
    build=build,
)
