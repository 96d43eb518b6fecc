"""Calls of a fleet of GPUs: long contexts, a fifth of the requests continue a session, the rest open one."""

from __future__ import annotations

import numpy as np

from loadtest.plan import CONVERSATION, PlanBuilder
from loadtest.scenarios.scenario import Scenario, Setting
from loadtest.scenarios.session import MAX_CONTEXT_BYTES, Session, grow, open_session

CONTEXT_TOKENS = {"121k": 121_000, "512k": 512_000, "1M": 1_000_000}
SHARE_CONTINUED = 0.2
REMEMBERED = 64
"""Sessions of each context that may still be continued."""


def build(setting: Setting, builder: PlanBuilder) -> None:
    """A group for each context; continued sessions go through the client process that opened them."""
    open_sessions: dict[str, list[tuple[int, Session]]] = {name: [] for name in CONTEXT_TOKENS}
    for number, at_ns in enumerate(setting.times()):
        name = list(CONTEXT_TOKENS)[int(setting.rng.integers(len(CONTEXT_TOKENS)))]
        known = open_sessions[name]
        if known and setting.rng.random() < SHARE_CONTINUED:
            client, session = known[int(setting.rng.integers(len(known)))]
            grow(setting, session)
        else:
            client, session = number, open_session(setting, number, CONTEXT_TOKENS[name])
            known.append((client, session))
            del known[:-REMEMBERED]
        start, length = session.pieces()
        builder.add(
            f"context of {name} tokens",
            np.array([at_ns]),
            np.array(start),
            np.array(length),
            counts=np.array([len(start)]),
            kind=CONVERSATION,
            client=np.array([client]),
        )


FLEET = Scenario(
    "fleet",
    "contexts of 121k, 512k and 1M tokens, a fifth continue a session; 9.25 requests/s for each simulated GPU",
    rate=9.25,
    arrivals="gamma:1.2",
    max_document_bytes=MAX_CONTEXT_BYTES,
    build=build,
    per_gpu=True,
)
