"""What a comparison of servers says: medians over its rounds, how much better the first server is, a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from loadtest.errors import BadResult
from loadtest.result import Result
from loadtest.scenarios import SCENARIOS
from loadtest.stepping import Step
from loadtest.table import markdown_table, microseconds, number

Figures = dict[str, float | None]
GAIN_OF_LESS = {"p50_us": "p50", "cpu_us": "CPU"}


def medians(result: Result) -> dict[str, dict[str, Figures]]:
    """By what was requested and by contender: medians over the rounds of p50, p99, rate, CPU and the probes' p99."""
    figures: dict[str, dict[str, Figures]] = {}
    steps = [(step["requests"], turn["contender"], step) for turn in result["turns"] for step in turn["steps"]]
    names = list(result["contenders"])
    order = list(dict.fromkeys(requests for requests, _, _ in steps))
    steps.sort(key=lambda row: (order.index(row[0]), names.index(row[1])))
    for (requests, contender), rows in groupby(steps, key=lambda row: row[:2]):
        each = [_figures(step) for _, _, step in rows]
        figures.setdefault(requests, {})[contender] = {
            figure: _median([row[figure] for row in each]) for figure in each[0]
        }
    return figures


def _figures(step: Step) -> Figures:
    latency = step["latency_us"] or {}
    probes = ((step["probes"] or {}).get("latency_us")) or {}
    return {
        "p50_us": latency.get("p50"),
        "p99_us": latency.get("p99"),
        "per_s": step["per_s"],
        "cpu_us": step["cpu_us"],
        "probe_p50_us": probes.get("p50"),
        "probe_p99_us": probes.get("p99"),
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def gains(figures: dict[str, Figures]) -> Figures:
    """How many times better the first contender is than the best of the others: p50, rate and CPU a request."""
    ours, *others = figures.values()
    found: Figures = {}
    for figure, name in GAIN_OF_LESS.items():
        rival = min((value for row in others if (value := row[figure])), default=None)
        mine = ours[figure]
        found[name] = rival / mine if rival and mine else None
    rates = [row["per_s"] for row in others if row["per_s"]]
    found["rate"] = ours["per_s"] / max(rates) if rates and ours["per_s"] else None
    return found


def versus_table(results: Sequence[Result]) -> str:
    """Markdown: a row for what was requested, a column for each server, and the gains of the first one."""
    names = list(results[0]["contenders"])
    rows = []
    for result in results:
        for requests, by_contender in medians(result).items():
            gained = gains(by_contender)
            if not SCENARIOS[result["scenario"]].closed:
                # What comes of an offered rate says little: all who keep up with it have the same.
                gained["rate"] = None
            rows.append(
                [_what(result, requests)]
                + [_cell(by_contender[name]) for name in names]
                + [", ".join(_times(gained[name]) for name in ("p50", "rate", "CPU"))]
            )
            if any(row["probe_p99_us"] is not None for row in by_contender.values()):
                rows.append([f"`{result['options']['probe']}` beside it, p50 / p99"])
                rows[-1] += [_probe_cell(by_contender[name]) for name in names] + [""]
    head = ["p50 / p99, requests/s, CPU of the server", *names, f"{names[0]} better: p50, rate, CPU"]
    return markdown_table(head, rows)


def _what(result: Result, requests: str) -> str:
    options = result["options"]
    path = {"vllm": "`/tokenize`", "vllm-render": "chat render", "native": "`/v1/encode`"}[options["api"]]
    if not SCENARIOS[result["scenario"]].closed:
        return f"{path}, `{result['scenario']}` at {requests}"
    return f"{path}, {requests}" + (f", {options['clients']} clients" if options["clients"] > 1 else "")


def _cell(figures: Figures) -> str:
    p50, p99 = microseconds(figures["p50_us"]), microseconds(figures["p99_us"])
    return f"{p50} / {p99}, {number(figures['per_s'])}, {microseconds(figures['cpu_us'])}"


def _probe_cell(figures: Figures) -> str:
    return f"{microseconds(figures['probe_p50_us'])} / {microseconds(figures['probe_p99_us'])}"


def _times(gain: float | None) -> str:
    return "–" if gain is None else f"{gain:.2f}x"


def versus_report(results: Sequence[Result]) -> str:
    """Where and how they were made, one table, and what was compared. Raises `BadResult` for others' contenders."""
    if any(list(result["contenders"]) != list(results[0]["contenders"]) for result in results):
        raise BadResult("these results compare different servers, or in another order: report them one by one")
    parts = [f"## {' against '.join(results[0]['contenders'])}", *map(_about, results), versus_table(results)]
    return "\n\n".join([*parts, "\n".join(note for result in results for note in _notes(result))])


def _about(result: Result) -> str:
    machine, options = result["machine"], result["options"]
    loads = [turn["load_average_before"] for turn in result["turns"]]
    return (
        f"`{result['scenario']}`: {result['about']}. {result['turns'][0]['started']}; "
        f"{machine['usable_cpus']} CPUs ({machine['cpu']}); medians of {result['n_rounds']} rounds of "
        f"{options['duration_s']:g} s, seeds from {options['seed']}, texts: {result['texts']['origin']}; "
        f"load average before a run {min(loads):.1f} to {max(loads):.1f}."
    )


def _notes(result: Result) -> list[str]:
    return [f"* {result['scenario']}, {name}: {_note(result, name)}" for name in result["contenders"]]


def _note(result: Result, name: str) -> str:
    steps = [step for turn in result["turns"] if turn["contender"] == name for step in turn["steps"]]
    n_equal, n_different = (sum(step[field] for step in steps) for field in ("n_equal", "n_different"))
    n_failed = sum(sum(step["failures"].values()) for step in steps)
    limits = ", which LIMITS it" if any(step["generator_limits"] for step in steps) else ""
    return (
        f"version {result['contenders'][name]['version']}; ids of {n_equal} answers equal, {n_different} different; "
        f"{n_failed} requests failed; a client was busy for {max(step['generator_busy'] for step in steps):.0%}{limits}"
    )
