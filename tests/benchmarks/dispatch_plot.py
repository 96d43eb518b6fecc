"""Latency and host CPU against offered rate, from the rows of `tests.benchmarks.dispatch`.

    python -m tests.benchmarks.dispatch_plot ROWS.json dispatch.svg [dispatch.png ...]

Needs matplotlib (extra `loadtest`).
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {"adaptive": "#1b6ca8", "gpu": "#d1495b", "cpu": "#4a7c59", "gigatoken": "#8a6fb0", "published": "#555555"}
PUBLISHED = {"rates": (10_000, 40_000, 60_000), "p50_us": (95, 192, 525), "host_cpu_us": (49, 32, 25)}
"""The published GPU tokenizer, in one process without a socket; it saturates at 77,000 documents a second."""
KEPT_UP = 0.97
"""Achieved over offered rate from which a point counts as sustained; others are drawn hollow."""
Row = Mapping[str, Any]


def plot(rows: Sequence[Row], files: Sequence[Path], title: str) -> None:
    """Draw rows of the table of policies into files, each in the format of its suffix."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams.update(
        {"font.size": 9, "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), constrained_layout=True)
    panels = (("p50_us", "median latency, us", "log"), ("p99_us", "p99 latency, us", "log"))
    for axis, (field, label, scale) in zip(
        axes, (*panels, ("host_cpu_us", "host CPU, us a document", "linear")), strict=True
    ):
        for target in dict.fromkeys(row["target"] for row in rows):
            _line(axis, [row for row in rows if row["target"] == target and row.get(field)], field, target)
        if field in PUBLISHED:
            rates = [rate / 1000 for rate in PUBLISHED["rates"]]
            axis.plot(
                rates, PUBLISHED[field], "x--", color=COLOURS["published"], lw=0.8, label="published GPU tokenizer"
            )
        axis.set(xlabel="offered, thousand documents a second", ylabel=label, yscale=scale)
        axis.set_xlim(left=0)
        if scale == "linear":
            axis.set_ylim(bottom=0)
        axis.grid(True, which="major", color="#e3e3e3", lw=0.6)
    axes[0].legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    for file in files:
        figure.savefig(file, dpi=150)
    pyplot.close(figure)


def _line(axis: Any, rows: Sequence[Row], field: str, target: str) -> None:
    colour = COLOURS.get(target, "#000000")
    rates = [row["offered_per_s"] / 1000 for row in rows]
    axis.plot(rates, [row[field] for row in rows], "-", color=colour, lw=1.4, label=target)
    for row, rate in zip(rows, rates, strict=True):
        kept_up = (
            row["achieved_per_s"] >= KEPT_UP * row["offered_per_s"] and not row["refused"] and not row["unanswered"]
        )
        axis.plot(rate, row[field], "o", ms=4.5, color=colour, markerfacecolor=colour if kept_up else "white")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    results = json.loads(arguments.rows.read_text())
    plot(results["policies"], arguments.files, results.get("title", ""))


if __name__ == "__main__":
    main()
