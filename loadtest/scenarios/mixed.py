"""Does the tail hold? Short prompts alone in the first half, beside a stream of 1M-token documents in the second."""

from __future__ import annotations

import numpy as np

from loadtest.plan import PlanBuilder
from loadtest.scenarios.scenario import BYTES_PER_TOKEN, Scenario, Setting

LONG_TOKENS = 1_000_000


def build(setting: Setting, builder: PlanBuilder) -> None:
    """Groups `short alone`, `short beside long` and `long`."""
    at_ns = setting.times()
    start, length = setting.dealer.mixed(setting.short_lengths(len(at_ns)))
    beside = at_ns >= setting.half_ns
    builder.add("short alone", at_ns[~beside], start[~beside], length[~beside])
    builder.add("short beside long", at_ns[beside], start[beside], length[beside])
    at_ns = setting.times(setting.options.long_rate)
    at_ns = at_ns[at_ns >= setting.half_ns]
    # The second half without a long document would show nothing.
    at_ns = at_ns if len(at_ns) else np.array([setting.half_ns], np.int64)
    lengths = np.full(len(at_ns), setting.size(LONG_TOKENS), np.int64)
    builder.add("long", at_ns, *setting.dealer.mixed(lengths))


MIXED = Scenario(
    "mixed",
    "short prompts, in the second half beside documents of 1M tokens",
    rate=500,
    arrivals="gamma:1.2",
    max_document_bytes=int(LONG_TOKENS * BYTES_PER_TOKEN),
    build=build,
)
