"""Plots of a comparison: latency and CPU against tokens of one document, throughput against the size of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.plots import new_figure, save
from loadtest.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cells = list[dict[str, Any]]
Value = Callable[[dict[str, Any], dict[str, Any]], float]


def draw(result: Result, folder: Path, form: str) -> list[Path]:
    """A file for each family, corpus and kind of plot that has points. Raises `LoadTestError` without matplotlib."""
    files = []
    for name, family in result["families"].items():
        for corpus in dict.fromkeys(cell["corpus"] for cell in family["cells"]):
            cells = [cell for cell in family["cells"] if cell["corpus"] == corpus]
            for kind, plot in PLOTS.items():
                figure, axes = new_figure()
                plot(axes, cells)
                if axes.has_data():
                    axes.set_title(f"{name}, {corpus}", fontsize="medium")
                    files.append(save(figure, axes, folder / f"{_file_name(name)}-{_file_name(corpus)}-{kind}.{form}"))
    return files


def latency_against_tokens(axes: Axes, cells: Cells) -> None:
    """Medians of one document: warm text as lines, new text dashed."""
    single = [cell for cell in cells if cell["n_documents"] == 1]
    _lines(axes, single, "n_tokens", lambda cell, found: found["warm_us"]["p50"], "-", "")
    _lines(axes, single, "n_tokens", lambda cell, found: found["new_us"]["p50"], ":", " new")
    axes.set(xlabel="tokens", ylabel="latency (us)", xscale="log", yscale="log")


def cpu_against_tokens(axes: Axes, cells: Cells) -> None:
    """CPU time of a call on all threads, on warm text."""
    single = [cell for cell in cells if cell["n_documents"] == 1]
    _lines(axes, single, "n_tokens", lambda cell, found: max(found["warm_us"]["cpu"], 0.1), "-", "")
    axes.set(xlabel="tokens", ylabel="CPU time of a call (us)", xscale="log", yscale="log")


def throughput_against_batch(axes: Axes, cells: Cells) -> None:
    """Tokens a second in batches of documents of one size."""
    sizes = {cell["asked_tokens"] for cell in cells if cell["n_documents"] > 1}
    batches = [cell for cell in cells if cell["asked_tokens"] in sizes]
    if batches:
        _lines(axes, batches, "n_documents", lambda c, found: c["n_tokens"] / found["warm_us"]["p50"], "-", "")
        axes.set(xlabel="documents in a batch", ylabel="million tokens/s, warm", xscale="log", yscale="log")


def _lines(axes: Axes, cells: Cells, across: str, value: Value, style: str, suffix: str) -> None:
    names = list(dict.fromkeys(name for cell in cells for name in cell["results"]))
    for k, name in enumerate(names):
        points = list(_points(cells, name, across, value))
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), style, color=f"C{k}", marker="o", markersize=3, label=name + suffix)


def _points(cells: Cells, name: str, across: str, value: Value) -> Iterator[tuple[float, float]]:
    for cell in sorted(cells, key=lambda cell: cell[across]):
        found = cell["results"].get(name)
        if found and found["exact"]:
            yield cell[across], value(cell, found)


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)


PLOTS: dict[str, Callable[[Axes, Cells], None]] = {
    "latency": latency_against_tokens,
    "cpu": cpu_against_tokens,
    "batch": throughput_against_batch,
}
