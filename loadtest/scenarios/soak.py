"""Hours of everything: short prompts, some batches, some long contexts. The timeline of the result shows drift."""

from __future__ import annotations

import numpy as np

from loadtest.plan import BATCH, PlanBuilder
from loadtest.scenarios.batch import DOCUMENT_TOKENS
from loadtest.scenarios.scenario import BYTES_PER_TOKEN, Scenario, Setting

CONTEXT_TOKENS = 121_000
BATCH_DOCUMENTS = 8
SHARES = {"short": 0.97, "batch of 8": 0.02, "context of 121k tokens": 0.01}


def build(setting: Setting, builder: PlanBuilder) -> None:
    """A group for each kind; each kind comes at least once in the measured time."""
    at_ns = setting.times()
    names = list(SHARES)
    drawn = setting.rng.choice(len(names), len(at_ns), p=list(SHARES.values()))
    measured = int(np.searchsorted(at_ns, setting.options.warm_up_s * 1e9))
    drawn[measured : measured + len(names)] = np.arange(len(names))[: len(at_ns) - measured]
    short, batch, context = (at_ns[drawn == k] for k in range(len(names)))
    builder.add(names[0], short, *setting.dealer.mixed(setting.short_lengths(len(short))))
    n_documents = BATCH_DOCUMENTS if setting.options.api == "native" else 1
    lengths = np.full(len(batch) * n_documents, setting.size(DOCUMENT_TOKENS), np.int64)
    counts = np.full(len(batch), n_documents, np.int64)
    kind = BATCH if n_documents > 1 else 0
    builder.add(names[1], batch, *setting.dealer.mixed(lengths), counts=counts, kind=kind)
    builder.add(names[2], context, *setting.dealer.mixed(np.full(len(context), setting.size(CONTEXT_TOKENS), np.int64)))


SOAK = Scenario(
    "soak",
    "short prompts, batches and contexts of 121k tokens, for hours (--duration 4h)",
    rate=100,
    arrivals="poisson",
    max_document_bytes=int(CONTEXT_TOKENS * BYTES_PER_TOKEN),
    build=build,
)
