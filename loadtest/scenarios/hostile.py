"""Worst-case inputs beside normal traffic: one client's nonsense must not be another's latency."""

from __future__ import annotations

import numpy as np

from loadtest.hostile_texts import INVALID
from loadtest.plan import BATCH, PlanBuilder
from loadtest.scenarios.scenario import Scenario, Setting

HOSTILE_BYTES = 1 << 18
PREFIX = "hostile: "
MAX_DOCUMENTS = 16_384
"""Of one request, by the native API; one more is refused."""


def build(setting: Setting, builder: PlanBuilder) -> None:
    """Groups `normal alone` and `normal beside hostile`, and in the second half one for each hostile input."""
    at_ns = setting.times()
    start, length = setting.dealer.mixed(setting.short_lengths(len(at_ns)))
    beside = at_ns >= setting.half_ns
    builder.add("normal alone", at_ns[~beside], start[~beside], length[~beside])
    builder.add("normal beside hostile", at_ns[beside], start[beside], length[beside])
    kinds = [name for name in setting.pool.regions if name.startswith(PREFIX)]
    batches = setting.options.api == "native"
    names = [*kinds, *((f"{PREFIX}most documents", f"{PREFIX}too many documents") if batches else ())]
    for name, moment in zip(names, _moments(setting, len(names)), strict=True):
        if name in kinds:
            place, n_bytes = setting.pool.whole(name)
            builder.add(
                name, moment, np.full(len(moment), place), np.full(len(moment), n_bytes), refused=name.endswith(INVALID)
            )
        else:
            n = MAX_DOCUMENTS + ("too many" in name)
            starts, lengths = setting.dealer.mixed(np.full(n * len(moment), 10, np.int64))
            counts = np.full(len(moment), n, np.int64)
            builder.add(name, moment, starts, lengths, counts=counts, kind=BATCH, refused="too many" in name)


def _moments(setting: Setting, n_kinds: int) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """When each kind comes: in turn, `long_rate` of them a second, each at least once."""
    half_s = setting.options.duration_s / 2
    n_each = max(1, round(half_s * setting.options.long_rate / n_kinds))
    at_ns = setting.half_ns + (np.arange(n_each * n_kinds) * half_s / (n_each * n_kinds) * 1e9).astype(np.int64)
    return [at_ns[k::n_kinds] for k in range(n_kinds)]


HOSTILE = Scenario(
    "hostile",
    "short prompts, in the second half beside inputs made to be slow or wrong",
    rate=200,
    arrivals="gamma:1.2",
    max_document_bytes=1 << 14,
    build=build,
    hostile_bytes=HOSTILE_BYTES,
)
