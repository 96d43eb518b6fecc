"""One request after the other: each client sends its next one when it has the answer to the last."""

from __future__ import annotations

import numpy as np

from loadtest.plan import CONVERSATION, PlanBuilder
from loadtest.scenarios.scenario import Scenario, Setting

LEAST_NS = 40_000
LEAST_NS_PER_BYTE = 1.0
"""No answer comes sooner than this, so that a plan never runs out of requests."""


def build(setting: Setting, builder: PlanBuilder) -> None:
    """One group: texts of one size for each client, more than it can send; all are due at once."""
    options = setting.options
    n_each = int(setting.total_s * 1e9 / (LEAST_NS + LEAST_NS_PER_BYTE * setting.n_bytes)) + 1
    n = n_each * options.clients
    start, length = setting.dealer.mixed(np.full(n, setting.n_bytes, np.int64))
    client = np.arange(n) % options.clients
    name, at_ns = f"{setting.n_bytes:,} bytes", np.zeros(n, np.int64)
    if options.messages == 1:
        builder.add(name, at_ns, start, length, client=client)
        return
    ends = (start[:, None] + length[:, None] * np.arange(1, options.messages + 1) // options.messages).reshape(-1)
    ends = setting.pool.next_character(ends, len(setting.pool.data))
    starts = np.concatenate(([0], ends[:-1]))
    starts[:: options.messages] = start
    builder.add(
        f"{name} in {options.messages} messages",
        at_ns,
        starts,
        ends - starts,
        counts=np.full(n, options.messages, np.int64),
        kind=CONVERSATION,
        client=client,
    )


CLOSED = Scenario(
    "closed",
    "one request after the other from each client, of each of --sizes in turn",
    rate=1,
    arrivals="constant",
    max_document_bytes=0,
    build=build,
    closed=True,
)
