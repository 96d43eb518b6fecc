"""Plots of results: latency and host CPU against rate, latency against size, curves of percentiles, a timeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.errors import LoadTestError
from loadtest.report import host_cpu_us
from loadtest.result import Result
from loadtest.stepping import Step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_INCHES = (7.0, 4.3)
DPI = 150


def draw(results: list[Result], folder: Path, form: str) -> list[Path]:
    """Draw every plot that the results have points for; returns the files.

    Raises `LoadTestError` without matplotlib.
    """
    files = []
    for name, plot in PLOTS.items():
        figure, axes = new_figure()
        for k, result in enumerate(results):
            plot(axes, result, label_of(results, k), f"C{k}")
        if axes.has_data():
            files.append(save(figure, axes, folder / f"{name}.{form}"))
    return files


def new_figure() -> tuple[Figure, Axes]:
    """An empty plot. Raises `LoadTestError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LoadTestError("plots need matplotlib: pip install 'sidetok[loadtest]'") from error
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    return figure, figure.add_subplot()


def save(figure: Figure, axes: Axes, path: Path) -> Path:
    """Add grid, legend and plain numbers, and write the file; its suffix is the format."""
    _number_plainly(axes)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A date in the file would make equal plots differ.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    return path


def latency_against_rate(axes: Axes, result: Result, label: str, colour: str) -> None:
    """p50 and p99 of every step."""
    steps = [step for step in by_rate(result) if step["latency_us"]]
    if len(steps) < 2:
        return
    offered = [step["offered_per_s"] for step in steps]
    for quantile, style in (("p50", "-"), ("p99", "--")):
        values = [step["latency_us"][quantile] for step in steps]
        axes.plot(offered, values, style, color=colour, marker="o", markersize=3, label=f"{label} {quantile}")
    axes.set(xlabel="offered requests/s", ylabel="latency from the intended start (us)", xscale="log", yscale="log")


def cpu_against_rate(axes: Axes, result: Result, label: str, colour: str) -> None:
    """Host CPU per request of every step."""
    points = [(step["offered_per_s"], host_cpu_us(step)) for step in by_rate(result)]
    known = [(rate, cpu) for rate, cpu in points if cpu is not None]
    if len(known) < 2:
        return
    axes.plot(*zip(*known, strict=True), "-", color=colour, marker="o", markersize=3, label=label)
    axes.set(xlabel="offered requests/s", ylabel="host CPU per request (us)", xscale="log", ylim=(0, None))


def achieved_against_offered(axes: Axes, result: Result, label: str, colour: str) -> None:
    """Where the line leaves the diagonal, the server is saturated."""
    if len(result["steps"]) < 2:
        return
    offered = [step["offered_per_s"] for step in by_rate(result)]
    achieved = [step["achieved_per_s"] for step in by_rate(result)]
    axes.plot(offered, achieved, "-", color=colour, marker="o", markersize=3, label=label)
    axes.set(xlabel="offered requests/s", ylabel="achieved requests/s")


def latency_against_size(axes: Axes, result: Result, label: str, colour: str) -> None:
    """p50 and p99 by the text of a request, of the fullest step."""
    step = fullest(result)
    sizes = [size for size in step["by_size"] if size["latency_us"]]
    if len(sizes) < 2:
        return
    for quantile, style in (("p50", "-"), ("p99", "--")):
        values = [size["latency_us"][quantile] for size in sizes]
        bytes_ = [size["median_bytes"] for size in sizes]
        axes.plot(bytes_, values, style, color=colour, marker="o", markersize=3, label=f"{label} {quantile}")
    axes.set(xlabel="bytes of text", ylabel="latency (us)", xscale="log", yscale="log")


def percentile_curve(axes: Axes, result: Result, label: str, colour: str) -> None:
    """Latency of every percentile; the axis stretches towards the tail."""
    step = fullest(result)
    points = [(100 / (100 - p), value) for p, value in step["curve_us"] if p < 100]
    if len(points) < 2:
        return
    axes.plot(*zip(*points, strict=True), "-", color=colour, label=f"{label}, {step['offered_per_s']:.0f}/s")
    axes.set(xscale="log", yscale="log", ylabel="latency (us)", xlabel="percentile")
    axes.set_xticks([1, 2, 10, 100, 1000], labels=["0", "50", "90", "99", "99.9"])


def timeline(axes: Axes, result: Result, label: str, colour: str) -> None:
    """p50 and p99 over the time of the fullest step."""
    step = fullest(result)
    for quantile, style in (("p50_us", "-"), ("p99_us", "--")):
        points = [(part["from_s"], part[quantile]) for part in step["timeline"] if part[quantile] is not None]
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), style, color=colour, label=f"{label} {quantile.removesuffix('_us')}")
            axes.set(xlabel="seconds", ylabel="latency (us)", yscale="log")


def by_rate(result: Result) -> list[Step]:
    """The steps by rising rate; a search goes back and forth."""
    return sorted(result["steps"], key=lambda step: float(step["offered_per_s"]))


def fullest(result: Result) -> Step:
    """The step with the most requests that was not more than the server takes; of only such, the first."""
    sustained = [step for step in result["steps"] if not step["saturated"]] or result["steps"][:1]
    return max(sustained, key=lambda step: step["n_requests"])


def _number_plainly(axes: Axes) -> None:
    """Ticks of logarithmic axes at 1, 2 and 5, without powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log" and axis.get_label_text() != "percentile":
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


def label_of(results: list[Result], k: int) -> str:
    """The scenario, and of several results of one scenario the server, the route or their number."""
    same = [i for i, result in enumerate(results) if result["scenario"] == results[k]["scenario"]]
    name = str(results[k]["scenario"])
    if len(same) == 1:
        return name
    for option in ("api", "route"):
        if len({results[i]["options"][option] for i in same}) == len(same):
            return f"{name}, {results[k]['options'][option]}"
    return f"{name} #{same.index(k) + 1}"


PLOTS: dict[str, Callable[[Axes, Result, str, str], None]] = {
    "latency-rate": latency_against_rate,
    "cpu-rate": cpu_against_rate,
    "achieved": achieved_against_offered,
    "latency-size": latency_against_size,
    "percentiles": percentile_curve,
    "timeline": timeline,
}
