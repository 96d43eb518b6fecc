"""Results as Markdown: what was offered, what came back, what it cost, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from loadtest.result import Result
from loadtest.scenarios import SCENARIOS
from loadtest.stepping import Step
from loadtest.table import markdown_table, microseconds, number, percent

HEAD = (
    "offered/s",
    "achieved/s",
    "p50",
    "p95",
    "p99",
    "p99.9",
    "host CPU us",
    "GPU route",
    "failed",
    "ids",
    "client busy",
    "late p99",
)
CLOSED_HEAD = ("requests of", "answered/s", *HEAD[2:-1])
"""Nothing is offered where clients wait for each answer, and nothing can be late."""


def markdown(results: Iterable[Result]) -> str:
    """A section for each result."""
    return "\n\n".join(_section(result) for result in results)


def _section(result: Result) -> str:
    parts = [f"## {result['scenario']}", about(result)]
    closed = SCENARIOS[result["scenario"]].closed
    rows = [(_name(step, closed), _row(step)) for step in result["steps"]]
    if closed:
        parts.append(markdown_table(CLOSED_HEAD, [[name, *row[1:-1]] for name, row in rows]))
    else:
        parts.append(markdown_table(HEAD, [row for _, row in rows]))
    notes = [note for step in result["steps"] for note in _notes(step, _name(step, closed))]
    if result["options"]["find_saturation"]:
        notes.append(_saturation(result["saturation"]))
    if notes:
        parts.append("\n".join(f"* {note}" for note in dict.fromkeys(notes)))
    last = result["steps"][-1]
    if len(last["groups"]) > 1:
        parts.append(f"By group, at {_name(last, closed)}{'' if closed else ' offered'}:")
        parts.append(_groups(last))
    return "\n\n".join(parts)


def about(result: Result) -> str:
    """Where and how a result was made, in a few lines."""
    machine, options = result["machine"], result["options"]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    server = result["server"]["version"] or {}
    codec = f", {options['codec']}" if options["api"] == "native" else ""
    codec += "" if options["route"] == "auto" else f", {options['route']} route asked for"
    if SCENARIOS[result["scenario"]].closed:
        times = "each client waits for its answer"
        counts = "Latency counts from sending"
    else:
        times = f"{result['arrivals']} arrivals"
        counts = "Latency counts from the intended start; *late* is how much of it had passed when the request was sent"
    return (
        f"{result['about']}. {result['started']}; {machine['usable_cpus']} CPUs ({machine['cpu']}), {gpus}; "
        f"{result['target']}, {options['api']}{codec}, server {server.get('version', 'unknown')}, "
        f"model {served_model(result)}; {times}, seed {options['seed']}, "
        f"{options['duration_s']:g} s a step after {options['warm_up_s']:g} s, scale {options['scale']:g}, "
        f"texts: {result['texts']['origin']}. {counts}."
    )


def served_model(result: Result) -> str:
    """The model that was asked for, by its name at the server."""
    wanted = result["options"]["model"]
    models = result["server"]["models"]
    default = next((m["id"] for m in models if m.get("default")), models[0]["id"] if models else "unknown")
    return wanted or str(default)


def gpu_share(step: Step) -> float | None:
    """Share of the documents that took the GPU route, where the server counts them."""
    routes: dict[str, float] = (step["server"] or {}).get("documents_by_route") or {}
    total = sum(routes.values())
    return float(routes.get("gpu", 0.0) / total) if total else None


def host_cpu_us(step: Step) -> float | None:
    """Host CPU per request: as the server's threads count it, else of its process, else as the kernel counts it."""
    server = step["server"] or {}
    own = server.get("host_cpu_us_per_request") or server.get("process_cpu_us_per_request")
    measured: float | None = own if own is not None else step["server_process_cpu_us_per_request"]
    return measured


def _name(step: Step, closed: bool) -> str:
    """What tells a step from the others: what was sent, or how much of it was offered."""
    if closed:
        return next(iter(step["groups"]), "–")
    return f"{number(step['offered_per_s'])}/s"


def _row(step: Step) -> list[str]:
    latency = step["latency_us"] or {}
    n_failed = sum(step["failures"].values())
    return [
        number(step["offered_per_s"]),
        number(step["achieved_per_s"]) + (" (saturated)" if step["saturated"] else ""),
        *(microseconds(latency.get(name)) for name in ("p50", "p95", "p99", "p99.9")),
        number(host_cpu_us(step)),
        percent(gpu_share(step)),
        str(n_failed),
        _ids(step["equality"]),
        percent(step["generator"]["busy"]) + (" (limits)" if step["generator"]["limits"] else ""),
        microseconds((step["lag_us"] or {}).get("p99")),
    ]


def _ids(equality: dict[str, Any]) -> str:
    if not equality["checked"]:
        return "not checked"
    if equality["n_different"]:
        return f"{equality['n_different']} WRONG of {equality['n_different'] + equality['n_equal']}"
    unjudged = f", {equality['n_unjudged']} unjudged" if equality.get("n_unjudged") else ""
    return f"{equality['n_equal']} equal{unjudged}"


def _notes(step: Step, name: str) -> list[str]:
    notes = [f"{name}: {n} x {what}" for what, n in step["failures"].items()]
    if step["saturated"]:
        notes.append(f"{name} is more than the server takes: {step['saturated']}")
    if step["generator"]["limits"]:
        busy = percent(step["generator"]["busy"])
        notes.append(
            f"{name}: a client process was busy {busy} of the time, so these are the generator's numbers, "
            "not the server's; give it more --clients"
        )
    equality = step["equality"]
    if not equality["checked"]:
        notes.append(f"ids were not compared with the reference ({equality['reference']})")
    elif equality["groups_not_checked"]:
        notes.append(f"{name}: no ids compared in: {', '.join(equality['groups_not_checked'])}")
    for title, group in step["groups"].items():
        alone = step["groups"].get(f"{title.partition(' beside ')[0]} alone")
        if " beside " in title and alone and alone["latency_us"] and group["latency_us"]:
            ratios = [f"{q} {group['latency_us'][q] / alone['latency_us'][q]:.2f}x" for q in ("p50", "p99")]
            notes.append(f"{name}: {title} takes {' and '.join(ratios)} of what it takes alone")
    if step["neighbours"]:
        beside = step["neighbours"]
        notes.append(
            f"{name}: {beside['n']} busy processes beside it did {number(beside['work_per_s'])} units of work/s"
        )
    return notes


def _saturation(found: dict[str, Any]) -> str:
    if found["sustained_per_s"] is None:
        return f"no rate was sustained: {found['reason']}"
    by = "; the generator set this limit" if found["limited_by"] == "generator" else ""
    if found["saturated_at_per_s"] is None:
        return f"{number(found['sustained_per_s'])}/s and more: no step was saturated{by}"
    return f"sustained {number(found['sustained_per_s'])}/s, saturated at {number(found['saturated_at_per_s'])}/s{by}"


def _groups(step: Step) -> str:
    rows = []
    for name, group in step["groups"].items():
        latency = group["latency_us"] or {}
        refused = " (refused, as it should be)" if group["wrong_on_purpose"] else ""
        rows.append(
            [name + refused, str(group["n"]), number(group["median_bytes"])]
            + [microseconds(latency.get(q)) for q in ("p50", "p95", "p99", "max")]
            + [str(sum(group["failures"].values()))]
        )
    return markdown_table(("group", "n", "bytes (median)", "p50", "p95", "p99", "max", "failed"), rows)
