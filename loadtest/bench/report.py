"""A comparison as Markdown: medians in one table for each family, spread and CPU time in others."""

from __future__ import annotations

from typing import Any

from loadtest.result import Result
from loadtest.table import markdown_table, microseconds, number

NOT_EXACT = "not exact"


def markdown(result: Result) -> str:
    """A section for each family."""
    machine = result["machine"]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    head = (
        f"{result['started']}; {machine['usable_cpus']} CPUs ({machine['cpu']}), {gpus}; "
        f"texts: {result['texts']['origin']}. "
        "Medians of a call in one process; *new* text has not been seen by the instance, *warm* text has. "
        "Ids were compared with the reference before anything was timed."
    )
    return "\n\n".join([head, *(_family(name, family) for name, family in result["families"].items())])


def _family(name: str, family: dict[str, Any]) -> str:
    names = [contender for contender, facts in family["contenders"].items() if facts["available"]]
    parts = [f"## {name}"]
    missing = [f"{c}: {f['reason']}" for c, f in family["contenders"].items() if not f["available"]]
    if missing:
        parts.append("Not here: " + "; ".join(missing) + ".")
    heads = [f"{c} ({family['contenders'][c]['threads']})" for c in names]
    for title, read in (
        ("New text / warm text, median", _times),
        ("Warm text, p95 / p99", _spread),
        ("CPU us of a call on warm text, all threads", _cpu),
    ):
        rows = [[*_label(cell), *(read(cell["results"].get(c)) for c in names)] for cell in family["cells"]]
        parts.append(f"{title} (in brackets: threads that a call may use):")
        parts.append(markdown_table(["corpus", "documents", "tokens", *heads], rows))
    return "\n\n".join(parts)


def _label(cell: dict[str, Any]) -> list[str]:
    return [cell["corpus"], str(cell["n_documents"]), number(cell["n_tokens"])]


def _times(found: dict[str, Any] | None) -> str:
    if found is None or not found["exact"]:
        return NOT_EXACT if found else "–"
    return f"{microseconds(found['new_us']['p50'])} / {microseconds(found['warm_us']['p50'])}"


def _spread(found: dict[str, Any] | None) -> str:
    if found is None or not found["exact"]:
        return NOT_EXACT if found else "–"
    return f"{microseconds(found['warm_us']['p95'])} / {microseconds(found['warm_us']['p99'])}"


def _cpu(found: dict[str, Any] | None) -> str:
    if found is None or not found["exact"]:
        return NOT_EXACT if found else "–"
    return number(found["warm_us"]["cpu"])
