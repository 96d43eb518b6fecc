"""Two results side by side, step by step and group by group; ratios are B over A."""

from __future__ import annotations

from typing import Any

from loadtest.report import about, host_cpu_us
from loadtest.result import Result
from loadtest.table import markdown_table, microseconds, number

QUANTILES = ("p50", "p95", "p99")
RATE_TOLERANCE = 0.02
OWN_OPTIONS = {
    "target", "api", "codec", "route", "model", "output", "server_pid", "tokenizer", "check", "check_against",
    "check_bytes", "rate", "find_saturation", "step_factor", "max_steps",
}  # fmt: skip
"""Options that may differ without the requests of a step being others."""


def compared(a: Result, b: Result) -> str:
    """Markdown; what makes the two incomparable stands first."""
    parts = ["A: " + about(a), "B: " + about(b)]
    parts += [f"**Not the same: {difference}**" for difference in differences(a, b)]
    rows = []
    for step_a, step_b in pairs(a, b):
        rows.append(_row(f"{number(step_a['rate'])}/s", step_a, step_b))
        shared = [name for name in step_a["groups"] if name in step_b["groups"]]
        if len(shared) > 1:
            rows += [_row(name, step_a["groups"][name], step_b["groups"][name]) for name in shared]
    if not rows:
        return "\n\n".join([*parts, "No rate was offered to both."])
    quantile_heads = [head for q in QUANTILES for head in (f"{q} A", f"{q} B", "B/A")]
    head = ["", *quantile_heads, "achieved/s A", "B", "host CPU us A", "B", "B/A", "failed A", "B"]
    return "\n\n".join([*parts, markdown_table(head, rows)])


def pairs(a: Result, b: Result) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Steps of both that were offered the same rate."""
    return [
        (step_a, step_b)
        for step_a in a["steps"]
        for step_b in b["steps"]
        if abs(step_a["rate"] - step_b["rate"]) <= RATE_TOLERANCE * step_a["rate"]
    ]


def differences(a: Result, b: Result) -> list[str]:
    """What else than the server differs, and whether either result is to be distrusted."""
    found = []
    for what in ("scenario", "arrivals", "texts", "machine"):
        if a[what] != b[what]:
            found.append(what)
    found += [
        f"option {name} ({a['options'][name]!r} and {b['options'][name]!r})"
        for name in a["options"]
        if name not in OWN_OPTIONS and a["options"][name] != b["options"].get(name)
    ]
    for name, result in (("A", a), ("B", b)):
        if any(step["equality"].get("n_different") for step in result["steps"]):
            found.append(f"{name} gave wrong ids")
        if any(step["generator"]["limits"] for step in result["steps"]):
            found.append(f"{name} has steps that the generator limits")
    return found


def _row(name: str, a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    cells = [name]
    for quantile in QUANTILES:
        values = [(side["latency_us"] or {}).get(quantile) for side in (a, b)]
        cells += [*map(microseconds, values), _ratio(*values)]
    if "achieved_per_s" in a:
        cpu = [host_cpu_us(a), host_cpu_us(b)]
        cells += [number(a["achieved_per_s"]), number(b["achieved_per_s"]), *map(number, cpu), _ratio(*cpu)]
    else:
        cells += [""] * 5
    return [*cells, *(str(sum(side["failures"].values())) for side in (a, b))]


def _ratio(a: float | None, b: float | None) -> str:
    return "–" if a is None or b is None or a == 0 else f"{b / a:.2f}x"
