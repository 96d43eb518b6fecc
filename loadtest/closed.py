"""Steps in which clients wait for each answer: what they are told, and what of their records counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from loadtest.client import NOT_SENT, TIMED_OUT
from loadtest.errors import BadOption
from loadtest.observed import Observed
from loadtest.options import LoadOptions
from loadtest.plan import PROBE, Plan
from loadtest.scenarios import Setting
from loadtest.step import Stage, send
from loadtest.stepping import Step


def parse_sizes(text: str) -> list[int]:
    """Bytes by commas. Raises `BadOption`."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadOption(f"--sizes {text!r} is no list of whole numbers") from error
    if not all(size > 0 for size in sizes):
        raise BadOption(f"--sizes {text!r} has a size that is not above 0")
    return sizes


def run_closed_step(stage: Stage, n_bytes: int) -> Step:
    """Send texts of one size, one after the other from each client. Raises `ClientDied`.

    Latency counts from sending. The rate is what came of it, and no rate is too high: nothing is ever saturated.
    """
    options = stage.options
    rng = np.random.default_rng((options.seed, n_bytes))
    setting = Setting(stage.dealer, options, stage.arrivals, 1.0, rng, n_bytes)
    plan = first_checked(stage.scenario.plan(setting), options if stage.judge.ask is not None else None)
    name = f"{stage.scenario.name}, {n_bytes:,} bytes"
    step = send(stage, plan, as_closed(options), name, partial(restated, int(options.warm_up_s * 1e9)))
    return {**step, "rate": step["achieved_per_s"], "saturated": None}


def as_closed(options: LoadOptions) -> LoadOptions:
    """A connection for each client, and one for probes; what was not sent when the time is over never will be."""
    n = options.clients + bool(options.probe)
    return replace(options, clients=n, connections=n, timeout_s=options.warm_up_s + options.duration_s)


def first_checked(plan: Plan, options: LoadOptions | None) -> Plan:
    """The plan with its first requests marked for the check of their ids: the later ones may never be sent."""
    if options is None:
        return plan
    rows = np.flatnonzero(plan.has_ids)[: options.check]
    checked = np.zeros(len(plan), bool)
    # At least one of each client, or a large size would not be checked at all.
    fits = (np.cumsum(plan.n_bytes[rows]) <= options.check_bytes) | (np.arange(len(rows)) < options.clients)
    checked[rows[fits]] = True
    return replace(plan, checked=checked)


def restated(from_ns: int, observed: Observed) -> Observed:
    """Requests that were sent, due when they were; what was on its way when the time was over is left out.

    A client that got no answer at all keeps its request, which has failed in the time measured from `from_ns` on.
    """
    plan, outcome = observed.plan, observed.outcome
    answered = np.unique(plan.client[outcome > 0])
    unanswered = outcome == TIMED_OUT
    cut = unanswered & np.isin(plan.client, answered)
    probes = plan.kind == PROBE
    rows = np.flatnonzero(probes | ((outcome != NOT_SENT) & ~cut))
    sent_ns = np.where(observed.sent_ns > 0, observed.sent_ns, observed.done_ns)
    sent_ns = np.where(unanswered, np.maximum(sent_ns, from_ns), sent_ns)
    due = replace(plan, at_ns=np.where(probes, plan.at_ns, sent_ns)).take(rows)
    place = {int(row): k for k, row in enumerate(rows)}
    return Observed(
        due,
        observed.sent_ns[rows],
        observed.done_ns[rows],
        outcome[rows],
        observed.n_bytes[rows],
        {place[row]: ids for row, ids in observed.ids.items()},
        [place[row] for row in observed.unreadable],
    )
