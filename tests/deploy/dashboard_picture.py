"""The dashboard as a picture: python -m tests.deploy.dashboard_picture [--prometheus PROGRAM] [--seconds N] FILE.png

Starts a service under load (both routes, a host device in the place of the GPU), has it scraped by a Prometheus server
(Debian's package, or the path of its program), asks for every query of `deploy/grafana/dashboard.json` and draws its
panels as they lie there.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from PIL import Image

from tests.deploy.conftest import DEPLOY
from tests.deploy.dashboard_load import Prometheus, burst, busy_service, end_engine

BOARD = DEPLOY / "grafana" / "dashboard.json"
VARIABLES = {"$job": ".*", "$instance": ".*", "$model": ".*", "$__rate_interval": "5s"}
CELL_INCHES = (0.62, 0.36)
"""Width and height of a cell of the dashboard's grid of 24 columns."""
MARGIN_INCHES = 0.5


class Series(NamedTuple):
    """One line: its legend, its labels, seconds since the start, values."""

    legend: str
    labels: dict[str, str]
    times_s: list[float]
    values: list[float]


def queried(panel: dict[str, Any], prometheus: Prometheus, start_s: float, end_s: float) -> list[Series]:
    """What Grafana would show in a panel."""
    found = []
    for target in panel["targets"]:
        expression = re.sub(r"\$\w+", lambda name: VARIABLES[name[0]], target["expr"])
        for one in prometheus.series(expression, start_s, end_s):
            labels = one["metric"]
            legend = re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), target["legendFormat"])  # noqa: B023
            pairs = [(float(at) - start_s, float(value)) for at, value in one["values"]]
            found.append(Series(legend, labels, [at for at, _ in pairs], [value for _, value in pairs]))
    return found


def draw_lines(axes: Axes, panel: dict[str, Any], lines: Sequence[Series]) -> None:
    """Lines, or areas on top of each other."""
    custom = panel["fieldConfig"]["defaults"]["custom"]
    if "stacking" in custom and lines:
        times = sorted({at for line in lines for at in line.times_s})
        rows = [[dict(zip(line.times_s, line.values, strict=True)).get(at, 0.0) for at in times] for line in lines]
        axes.stackplot(times, np.nan_to_num(rows), labels=[line.legend for line in lines], alpha=0.6)
    else:
        for line in lines:
            axes.plot(line.times_s, line.values, label=line.legend, linewidth=1.2)
    axes.set_ylim(bottom=0)
    beside = panel["options"]["legend"]["placement"] == "right"
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.12), "ncols": 3}
    if beside:
        place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position((left, bottom, width * 0.68, height))
    if lines:
        axes.legend(fontsize=6, frameon=False, columnspacing=1, **place)


def draw_heat(axes: Axes, panel: dict[str, Any], buckets: Sequence[Series]) -> None:
    """How much falls between two bounds, for each second; the rows are the bounds, as Grafana has them."""
    ordered = sorted(buckets, key=lambda one: float(one.labels["le"]))
    if not ordered:
        return
    counts = np.diff(np.array([one.values for one in ordered]), axis=0, prepend=0)
    axes.imshow(
        np.sqrt(counts), aspect="auto", origin="lower", cmap="Oranges", extent=(0, counts.shape[1], 0, len(ordered))
    )
    step = max(1, len(ordered) // 8)
    unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    names = [unit(float(one.labels["le"])) for one in ordered]
    axes.set_yticks(range(step, len(ordered) + 1, step), names[step - 1 :: step])


def scaled(value: float, steps: Sequence[tuple[float, str]]) -> str:
    """A value in the largest unit that leaves a number of at least 1."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / size:.3g}{name}"


def unit_of(*steps: tuple[float, str]) -> Callable[[float], str]:
    """How values of a unit are written."""
    return lambda value: scaled(value, steps)


SHORT = ((1e9, " G"), (1e6, " M"), (1e3, " K"), (1, ""))
BYTES = ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"), (1, " B"))
UNITS = {
    "s": unit_of((1, " s"), (1e-3, " ms"), (1e-6, " us")),
    "bytes": unit_of(*BYTES),
    "Bps": unit_of((1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1, " B/s")),
    "short": unit_of(*SHORT),
    "ops": unit_of(*((size, f"{name} ops/s") for size, name in SHORT)),
    "reqps": unit_of(*((size, f"{name} req/s") for size, name in SHORT)),
}
DRAWN = {"timeseries": draw_lines, "heatmap": draw_heat}


def draw(board: dict[str, Any], lines_of: dict[int, list[Series]], path: Path) -> list[str]:
    """Write the picture; returns the titles of panels that show nothing."""
    width, height = CELL_INCHES
    n_rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = pyplot.figure(figsize=(24 * width, n_rows * height))
    empty = []
    for panel in board["panels"]:
        at = panel["gridPos"]
        top = 1 - at["y"] / n_rows
        if panel["type"] == "row":
            figure.text(0.01, top - 0.7 / n_rows, panel["title"], fontsize=12, weight="bold")
            continue
        below = 2.3 if panel["type"] == "timeseries" else 1.0
        box = (
            at["x"] / 24 + 0.035,
            top - (at["h"] - below) / n_rows,
            at["w"] / 24 - 0.05,
            (at["h"] - below - 1.2) / n_rows,
        )
        axes = figure.add_axes(box)
        lines = lines_of[panel["id"]]
        DRAWN[panel["type"]](axes, panel, lines)
        if panel["type"] == "timeseries":
            unit = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, unit=unit: unit(value)))
        axes.set_title(panel["title"], fontsize=8, loc="left")
        axes.tick_params(labelsize=6)
        if not any(math.isfinite(value) for line in lines for value in line.values):
            axes.text(0.5, 0.5, "No data", transform=axes.transAxes, ha="center", color="gray")
            empty.append(panel["title"])
    figure.savefig(path, dpi=72)
    pyplot.close(figure)
    with Image.open(path) as picture:
        picture.quantize(64).save(path, optimize=True)
    return empty


def watched(program: str, seconds: int, board: dict[str, Any]) -> dict[int, list[Series]]:
    """The series of every panel by its id, after so many seconds of load."""
    still = threading.Event()
    with tempfile.TemporaryDirectory(prefix="sidetok-") as name, busy_service(Path(name), still) as service:
        prometheus = Prometheus(program, Path(name), service.port)
        start_s = time.time()
        try:
            for event in (burst, end_engine, burst):
                still.wait(seconds / 4)
                event(service)
            still.wait(seconds / 4)
            end_s = time.time()
            panels = [panel for panel in board["panels"] if panel["type"] != "row"]
            return {panel["id"]: queried(panel, prometheus, start_s, end_s) for panel in panels}
        finally:
            prometheus.close()


def main() -> None:
    """Read the arguments, watch, draw, and name the panels that are empty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--prometheus", default="prometheus", metavar="PROGRAM")
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    empty = draw(board, watched(given.prometheus, given.seconds, board), given.file)
    print(f"wrote {given.file}; empty: {', '.join(empty) or 'none'}")


if __name__ == "__main__":
    main()
