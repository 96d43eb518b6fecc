"""One step: a plan is made, sent, observed and put into figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest import generator, server_metrics
from loadtest.client_process import Assignment
from loadtest.crew import run_crew
from loadtest.equality import Judge, check
from loadtest.neighbours import Neighbours
from loadtest.observed import Observed, collect
from loadtest.options import LoadOptions
from loadtest.plan import PROBE, Plan, with_sample
from loadtest.processes import cpu_time_s
from loadtest.scenarios import Scenario, Setting
from loadtest.scenarios.scenario import Dealer
from loadtest.schedule import Arrivals
from loadtest.stepping import Step, why_saturated
from loadtest.summary import summarise
from loadtest.target import Target

Seen = Callable[[Observed], Observed]
Progress = Callable[[str, int, int], None]
"""Gets the name of the step, the number of requests done, and of all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What all steps of a run share."""

    scenario: Scenario
    options: LoadOptions
    target: Target
    dealer: Dealer
    arrivals: Arrivals
    judge: Judge
    folder: Path
    server_pids: list[int]
    neighbours: Neighbours
    progress: Progress


def plan_step(stage: Stage, rate: float) -> Plan:
    """The requests of a step; the same for the same seed, rate and steps before it."""
    options = stage.options
    rng = np.random.default_rng((options.seed, int(rate * 1000)))
    plan = stage.scenario.plan(Setting(stage.dealer, options, stage.arrivals, rate, rng))
    n_checked = options.check if stage.judge.ask is not None else 0
    return with_sample(plan, n_checked, options.check_bytes, int(options.warm_up_s * 1e9), rng)


def run_step(stage: Stage, rate: float) -> Step:
    """Offer one rate and say what came of it. Raises `ClientDied`."""
    name = f"{stage.scenario.name} at {rate:g}/s"
    return {"rate": rate, **send(stage, plan_step(stage, rate), stage.options, name)}


def send(stage: Stage, plan: Plan, options: LoadOptions, name: str, seen: Seen = lambda found: found) -> Step:
    """Send a plan and put what came of it into figures; `seen` may correct the observations. Raises `ClientDied`."""
    plan.save(stage.folder / "plan.npz")
    assignments = [Assignment(stage.folder, "plan.npz", k, stage.target, options) for k in range(options.clients)]
    before, cpu_before = server_metrics.scrape(stage.target), cpu_time_s(stage.server_pids)
    begin_s, n_before = time.monotonic(), stage.neighbours.n_done
    total_s = options.warm_up_s + options.duration_s
    efforts = run_crew(assignments, total_s, lambda n_done: stage.progress(name, n_done, len(plan)))
    stage.progress(name, len(plan), len(plan))
    elapsed_s, n_done = time.monotonic() - begin_s, stage.neighbours.n_done - n_before
    cpu_after, after = cpu_time_s(stage.server_pids), server_metrics.scrape(stage.target)
    observed = seen(collect(plan, assignments))
    plan = observed.plan
    step: Step = summarise(observed, options.warm_up_s, options.duration_s)
    checking = f"{name}: ids compared"
    step["equality"] = check(
        observed,
        stage.dealer.pool,
        stage.judge,
        int(options.warm_up_s * 1e9),
        lambda n_done, n_all: stage.progress(checking, n_done, n_all),
    )
    stage.progress(checking, len(observed.ids), len(observed.ids))
    step["generator"] = generator.describe(efforts, len(plan))
    n_answered = int(((observed.outcome > 0) & (plan.kind != PROBE)).sum())
    step["server"] = server_metrics.describe(before, after, n_answered)
    step["server_process_cpu_us_per_request"] = (
        (cpu_after - cpu_before) / n_answered * 1e6
        if stage.server_pids and cpu_before is not None and cpu_after is not None and n_answered
        else None
    )
    n_neighbours = len(stage.neighbours.processes)
    step["neighbours"] = {"n": n_neighbours, "work_per_s": n_done / elapsed_s} if n_neighbours else None
    step["saturated"] = why_saturated(step)
    return step
