"""Documents of 8k tokens, 1 to 256 in a request."""

from __future__ import annotations

import numpy as np

from loadtest.plan import BATCH as BATCH_KIND
from loadtest.plan import PlanBuilder
from loadtest.scenarios.scenario import BYTES_PER_TOKEN, Scenario, Setting

DOCUMENT_TOKENS = 8192
SIZES = (1, 4, 16, 64, 256)


def build(setting: Setting, builder: PlanBuilder) -> None:
    """A group for each size, in turn."""
    at_ns = setting.times()
    for k, size in enumerate(SIZES):
        rows = np.arange(k, len(at_ns), len(SIZES))
        lengths = np.full(len(rows) * size, setting.size(DOCUMENT_TOKENS), np.int64)
        start, length = setting.dealer.mixed(lengths)
        counts = np.full(len(rows), size, np.int64)
        builder.add(f"batch of {size}", at_ns[rows], start, length, counts=counts, kind=BATCH_KIND)


BATCH = Scenario(
    "batch",
    "documents of 8k tokens, batches of 1 to 256",
    rate=5,
    arrivals="poisson",
    max_document_bytes=int(DOCUMENT_TOKENS * BYTES_PER_TOKEN),
    build=build,
    batches=True,
)
