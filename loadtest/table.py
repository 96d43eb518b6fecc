"""Markdown tables and numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; `|` in cells is kept as text."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Three digits, thousands by commas; a dash for nothing."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def microseconds(value: float | None) -> str:
    """In the unit that leaves few digits: us, ms or s."""
    if value is None:
        return "–"
    for limit, factor, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms")):
        if value < limit:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e6:.3g} s"


def percent(share: float | None) -> str:
    """A share as whole percents."""
    return "–" if share is None else f"{100 * share:.0f} %"
