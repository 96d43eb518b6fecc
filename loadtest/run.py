"""A whole run: look at the target, make the texts, run the steps, put the facts around them."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadtest.api import make_api
from loadtest.closed import parse_sizes, run_closed_step
from loadtest.equality import find_judge, other_server
from loadtest.errors import BadOption
from loadtest.hostile_texts import hostile_texts
from loadtest.machine import load_average, machine_facts, versions
from loadtest.neighbours import busy
from loadtest.options import LoadOptions
from loadtest.pool import Pool, write_pool
from loadtest.result import FORMAT
from loadtest.scenarios import SCENARIOS, Scenario
from loadtest.scenarios.hostile import PREFIX
from loadtest.scenarios.scenario import CONVERSATIONS, Dealer
from loadtest.schedule import parse_arrivals
from loadtest.server import ask_server
from loadtest.step import Progress, Stage, run_step
from loadtest.stepping import parse_rates, saturation, search
from loadtest.target import parse_target
from loadtest.texts import Texts, read_texts

MAX_CASES = 200
"""Of the small tricky inputs that a folder of texts may hold."""


def run(name: str, options: LoadOptions, progress: Progress) -> dict[str, Any]:
    """Run a scenario; the result as it is written. Raises `LoadTestError`."""
    scenario = SCENARIOS[name]
    options = _checked(scenario, options)
    target = parse_target(options.target)
    server = ask_server(target)
    if options.api != "native" and not options.model:
        options = replace(options, model=str((server.model("") or {}).get("id", "")))
    api = make_api(options.api, options.codec, options.model)
    if options.check_against:
        judge = other_server(parse_target(options.check_against), api)
    else:
        judge = find_judge(options.tokenizer, server.digest(options.model), api.ids_are_of_text)
    texts, cpus = read_texts(options.text, options.seed), parse_cpus(options.neighbour_cpus)
    rates = parse_rates(options.rate, scenario.rate * (options.gpus if scenario.per_gpu else 1))
    facts: dict[str, Any] = {
        "format": FORMAT,
        "scenario": name,
        "about": scenario.doc,
        "options": asdict(options),
        "arrivals": options.arrivals or scenario.arrivals,
        "texts": {"origin": texts.origin, "bytes": {k: len(v) for k, v in texts.corpora.items()}},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine_facts(),
        "load_average_before": load_average(),
        "versions": versions(),
        "target": str(target),
        "server": asdict(server),
    }
    with (
        tempfile.TemporaryDirectory(prefix="sidetok-loadtest-") as folder,
        busy(options.neighbours, cpus) as neighbours,
    ):
        pool = make_pool(Path(folder), scenario, options, texts)
        stage = Stage(
            scenario, options, target, Dealer(pool, options.seed), parse_arrivals(facts["arrivals"]), judge,
            Path(folder), _pids(options.server_pid), neighbours, progress,
        )  # fmt: skip
        if scenario.closed:
            steps = [run_closed_step(stage, n_bytes) for n_bytes in parse_sizes(options.sizes)]
        elif options.find_saturation:
            steps = search(
                lambda rate: run_step(stage, rate), rates[0], options.step_factor, options.max_steps, options.refine
            )
        else:
            steps = [run_step(stage, rate) for rate in rates]
    return {**facts, "steps": steps, "saturation": saturation(steps)}


def make_pool(folder: Path, scenario: Scenario, options: LoadOptions, texts: Texts) -> Pool:
    """The texts that a scenario needs, as one file in a folder."""
    longest = int(scenario.max_document_bytes * max(options.scale, 1e-9)) + 1
    if scenario.closed:
        longest = max(parse_sizes(options.sizes)) + 1
    exact: dict[str, bytes] = {}
    if scenario.hostile_bytes:
        made = hostile_texts(max(64, int(scenario.hostile_bytes * options.scale)), options.seed)
        exact = {PREFIX + name: text for name, text in made.items()}
        if texts.cases:
            exact[PREFIX + "small cases, joined"] = b"\n".join(texts.cases[:MAX_CASES])
    apart = {CONVERSATIONS: texts.conversations} if texts.conversations else {}
    return write_pool(folder, texts.corpora, longest, exact=exact, apart=apart)


def _checked(scenario: Scenario, options: LoadOptions) -> LoadOptions:
    if scenario.batches and options.api != "native":
        raise BadOption(f"{scenario.name} sends several documents in a request, which --api {options.api} cannot take")
    for field in ("clients", "connections", "gpus", "messages"):
        if getattr(options, field) < 1:
            raise BadOption(f"--{field} must be at least 1")
    for field in ("duration_s", "timeout_s", "scale", "think_time_s", "long_rate"):
        if getattr(options, field) <= 0:
            raise BadOption(f"--{field.removesuffix('_s').replace('_', '-')} must be above 0")
    return replace(options, connections=max(options.connections, options.clients))


def parse_cpus(text: str) -> set[int]:
    """CPUs like `0-3,8`; those of this process for none. Raises `BadOption`."""
    ours = os.sched_getaffinity(0)
    try:
        bounds = [part.partition("-") for part in text.split(",")] if text else []
        found = {cpu for first, _, last in bounds for cpu in range(int(first), int(last or first) + 1)}
    except ValueError as error:
        raise BadOption(f"--neighbour-cpus {text!r} is no list of CPUs") from error
    if not found <= set(range(os.cpu_count() or 1)):
        raise BadOption(f"--neighbour-cpus {text!r} names CPUs that this machine lacks")
    return found or ours


def _pids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise BadOption(f"--server-pid {text!r} is no list of process ids") from error
