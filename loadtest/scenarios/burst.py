"""Short prompts that come in bursts: a tenth of the time has 5.5 times the mean rate, the rest half of it."""

from __future__ import annotations

import numpy as np

from loadtest.plan import PlanBuilder
from loadtest.scenarios.scenario import Scenario, Setting
from loadtest.schedule import times_of_profile

SHARE_OF_TIME = 0.1
BURST_FACTOR, CALM_FACTOR = 5.5, 0.5
MAX_PERIOD_S = 5.0
MIN_PERIODS = 4


def build(setting: Setting, builder: PlanBuilder) -> None:
    """Groups `calm` and `burst`, by the rate at the intended start."""
    period_s = min(MAX_PERIOD_S, setting.total_s / MIN_PERIODS)
    n_periods = int(np.ceil(setting.total_s / period_s))
    borders = np.arange(n_periods)[:, None] * period_s + np.array([0.0, (1 - SHARE_OF_TIME) * period_s])
    seconds = np.minimum(np.append(borders.reshape(-1), n_periods * period_s), setting.total_s)
    rates = np.tile([CALM_FACTOR, BURST_FACTOR], n_periods) * setting.rate
    at_ns = times_of_profile(setting.arrivals, seconds, rates, setting.rng)
    start, length = setting.dealer.mixed(setting.short_lengths(len(at_ns)))
    in_burst = (at_ns * 1e-9) % period_s >= (1 - SHARE_OF_TIME) * period_s
    for name, rows in (("calm", ~in_burst), ("burst", in_burst)):
        builder.add(name, at_ns[rows], start[rows], length[rows])


BURST = Scenario(
    "burst",
    "short prompts, a tenth of the time at 5.5 times the mean rate",
    rate=300,
    arrivals="poisson",
    max_document_bytes=1 << 14,
    build=build,
)
