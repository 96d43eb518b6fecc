"""Several servers of one API: the same requests to each in turn, round after round, and what their medians say.

In a round every server gets the same texts, in the next one others, so no server has seen a text that is timed. Which
server begins a round changes, and what else the machine does meets all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from loadtest.errors import BadOption
from loadtest.options import LoadOptions
from loadtest.result import Result
from loadtest.run import run
from loadtest.scenarios import SCENARIOS
from loadtest.step import Progress
from loadtest.stepping import Step
from loadtest.target import parse_target

FORMAT = "sidetok-versus/1"
SHARED_FACTS = ("scenario", "about", "machine", "versions")


class Contender(NamedTuple):
    """A server by its name in tables, its address, and the process whose CPU time is counted."""

    name: str
    target: str
    pid: str


def parse_contenders(texts: Sequence[str]) -> list[Contender]:
    """Servers written `NAME=ADDRESS@PID`. Raises `BadOption`."""
    found = []
    for text in texts:
        match = re.fullmatch(r"([^=]+)=(.+)@(\d+)", text)
        if match is None:
            raise BadOption(f"--contender {text!r} is not NAME=ADDRESS@PID")
        found.append(Contender(*match.groups()))
    if len(found) < 2 or len({contender.name for contender in found}) < len(found):
        raise BadOption("--contender must be given for two servers or more, each with a name of its own")
    for contender in found:
        parse_target(contender.target)
    return found


def run_versus(
    name: str, options: LoadOptions, contenders: Sequence[Contender], n_rounds: int, progress: Progress
) -> Result:
    """Run a scenario against each server in each round; the result as it is written. Raises `LoadTestError`.

    Where the reference cannot judge the ids, those of a server are compared with the one before it in the round.
    """
    if n_rounds < 1:
        raise BadOption("--rounds must be at least 1")
    facts: Result = {}
    turns = []
    for k in range(n_rounds):
        before = ""
        for contender in _rotated(contenders, k):
            own = replace(options, target=contender.target, server_pid=contender.pid, seed=options.seed + k)
            own = replace(own, check_against=options.check_against or (before if options.api == "vllm-render" else ""))
            result = run(name, own, _named(f"round {k + 1}, {contender.name}", progress))
            facts = facts or _facts(result, contenders, n_rounds)
            facts["contenders"][contender.name]["version"] = (result["server"]["version"] or {}).get("version")
            turns.append(
                {
                    "contender": contender.name,
                    "round": k + 1,
                    "started": result["started"],
                    "load_average_before": result["load_average_before"],
                    "steps": [_brief(step, SCENARIOS[name].closed) for step in result["steps"]],
                }
            )
            before = contender.target
    return {**facts, "turns": turns}


def _rotated(contenders: Sequence[Contender], k: int) -> list[Contender]:
    first = k % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def _named(prefix: str, progress: Progress) -> Progress:
    return lambda name, n_done, n_all: progress(f"{prefix}: {name}", n_done, n_all)


def _facts(result: Result, contenders: Sequence[Contender], n_rounds: int) -> Result:
    """What all turns share. Folders of this machine are no facts about a server."""
    own = ("target", "server_pid", "output", "check_against")
    options = {name: value for name, value in result["options"].items() if name not in own}
    options |= {name: PurePath(options[name]).name for name in ("tokenizer", "text")}
    return {
        "format": FORMAT,
        **{name: result[name] for name in SHARED_FACTS},
        "texts": {**result["texts"], "origin": PurePath(result["texts"]["origin"]).name},
        "options": options,
        "n_rounds": n_rounds,
        "contenders": {contender.name: {"version": None} for contender in contenders},
    }


def _brief(step: Step, closed: bool) -> Step:
    """The figures of a step that are compared, under the name of what was requested."""
    groups = dict(step["groups"])
    probes = [groups.pop(name) for name in list(groups) if name.startswith("GET ")]
    equality = step["equality"]
    return {
        "requests": next(iter(groups)) if closed else f"{step['rate']:g}/s",
        "n": step["n_requests"],
        "per_s": step["achieved_per_s"],
        "latency_us": step["latency_us"],
        "cpu_us": step["server_process_cpu_us_per_request"],
        "failures": step["failures"],
        "probes": {"n": probes[0]["n"], "latency_us": probes[0]["latency_us"]} if probes else None,
        "n_equal": equality.get("n_equal", 0),
        "n_different": equality.get("n_different", 0),
        "generator_busy": step["generator"]["busy"],
        "generator_limits": step["generator"]["limits"],
    }


def went_wrong(result: Result) -> bool:
    """Whether an id differed or a request failed."""
    return any(step["n_different"] or step["failures"] for turn in result["turns"] for step in turn["steps"])
