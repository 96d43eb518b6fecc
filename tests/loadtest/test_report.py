"""Reports, comparisons, plots and files: what a result says is what a reader sees."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from loadtest.compare import compared, differences
from loadtest.errors import BadResult
from loadtest.plots import PLOTS, achieved_against_offered, draw, label_of, new_figure
from loadtest.report import markdown
from loadtest.result import read_result, write_result
from loadtest.table import markdown_table, microseconds, number, percent
from tests.loadtest.results import result_of, step_of


def test_numbers() -> None:
    """Three digits, with units where they help; nothing is a dash."""
    assert [number(v) for v in (None, 0, 0.12345, 12.345, 1234.5)] == ["–", "0", "0.123", "12.3", "1,234"]
    assert [microseconds(v) for v in (None, 95.2, 1234.0, 2.5e6)] == ["–", "95.2 us", "1.23 ms", "2.5 s"]
    assert [percent(v) for v in (None, 0.256)] == ["–", "26 %"]
    assert markdown_table(("a", "b"), [("x|y", "1")]) == "| a | b |\n| --- | --- |\n| x\\|y | 1 |"


def test_a_report() -> None:
    """Rates, latencies, host CPU, the share of the GPU and the check of ids, a row for each step."""
    text = markdown([result_of(step_of(100), step_of(200, p50_us=1500))])
    assert "| 100 | 100 | 100 us | 200 us | 400 us | 800 us | 50 | 25 % | 0 | 20 equal | 20 % | 400 us |" in text
    assert "| 200 | 200 | 1.5 ms |" in text
    assert "| books |" in text
    assert "A CPU" in text
    assert "A GPU" in text
    assert "model m" in text


def test_a_report_of_a_closed_loop() -> None:
    """Each size has its row, nothing is said to be offered or to arrive, and latency counts from sending."""
    group = step_of(100)["groups"]["books"]
    steps = [step_of(100, groups={f"{size:,} bytes": group}, failures={"timed out": 4}) for size in (1024, 480_000)]
    text = markdown([result_of(*steps, scenario="closed", arrivals="constant")])
    assert "| requests of | answered/s | p50 |" in text
    for size in ("1,024 bytes", "480,000 bytes"):
        assert f"| {size} | 100 | 100 us | 200 us | 400 us | 800 us | 50 | 25 % | 4 | 20 equal | 20 % |" in text
        assert f"* {size}: 4 x timed out" in text
    assert "each client waits for its answer" in text
    assert "Latency counts from sending" in text
    for wrong in ("arrivals", "offered", "intended", "late"):
        assert wrong not in text.replace("Latency", "")


def test_what_a_report_does_not_hide() -> None:
    """Wrong ids, failures, saturation, a busy generator and a check that was off are said in words."""
    wrong = {"checked": True, "reference": "r", "n_equal": 3, "n_different": 2, "different": {"code": 2},
             "groups_not_checked": ["books"]}  # fmt: skip
    off = {"checked": False, "reference": "off: no file"}
    text = markdown(
        [
            result_of(
                step_of(100, equality=wrong, failures={"timed out": 4}),
                step_of(200, 90, equality=off, saturated="90 answers/s", generator={"busy": 0.8, "limits": True}),
                step_of(300, neighbours={"n": 3, "work_per_s": 7.0}),
            )
        ]
    )
    for said in (
        "2 WRONG of 5", "4 x timed out", "no ids compared in: books", "off: no file", "more than the server takes",
        "the generator's numbers", "80 % (limits)", "90 (saturated)", "3 busy processes beside it",
    ):  # fmt: skip
        assert said in text, said


def test_a_tail_that_does_not_hold() -> None:
    """Groups beside something are set against the same alone."""
    alone = step_of(100)["groups"]["books"]
    beside = {**alone, "latency_us": {**alone["latency_us"], "p50": 150.0, "p99": 4000.0}}
    step = step_of(100, groups={"short alone": alone, "short beside long": beside, "long": alone})
    assert "short beside long takes p50 1.50x and p99 10.00x of what it takes alone" in markdown([result_of(step)])


def test_files(tmp_path: Path) -> None:
    """What is written is read again; anything else is no result."""
    path = tmp_path / "r.json"
    write_result(path, result_of(step_of(100.123456789)))
    assert read_result(path)["steps"][0]["rate"] == 100.123
    for text in ("", "[]", '{"format": "other"}'):
        path.write_text(text)
        with pytest.raises(BadResult, match=r"r\.json"):
            read_result(path)
    with pytest.raises(BadResult, match="missing"):
        read_result(tmp_path / "missing.json")


def test_a_comparison() -> None:
    """Steps of one rate side by side, with ratios, and groups of the same name below."""
    a, b = result_of(step_of(100), step_of(200)), result_of(step_of(100, p50_us=300.0))
    text = compared(a, b)
    assert "| 100/s | 100 us | 300 us | 3.00x |" in text
    assert "| books | 100 us | 300 us | 3.00x |" in text
    assert "200/s" not in text
    assert "Not the same" not in text


def test_comparisons_say_what_differs() -> None:
    """Another machine, other texts, wrong ids on one side: it stands before the numbers."""
    a = result_of(step_of(100))
    wrong = {
        "checked": True,
        "reference": "r",
        "n_equal": 0,
        "n_different": 1,
        "different": {},
        "groups_not_checked": [],
    }
    b = result_of(step_of(300, equality=wrong), machine={**a["machine"], "usable_cpus": 4})
    b["options"] = {**a["options"], "seed": 2, "codec": "json"}
    assert differences(a, b) == ["machine", "option seed (1 and 2)", "B gave wrong ids"]
    text = compared(a, b)
    assert "**Not the same: machine**" in text
    assert "No rate was offered to both." in text


def test_plots(tmp_path: Path) -> None:
    """Every plot is drawn, in either format, for one result or several; the files are what their names say."""
    results = [result_of(step_of(100), step_of(200)), result_of(step_of(100), step_of(200), scenario="fleet")]
    files = draw(results, tmp_path / "plots", "png")
    assert [path.stem for path in files] == list(PLOTS)
    for path in files:
        header = path.read_bytes()[:24]
        assert header[:8] == b"\x89PNG\r\n\x1a\n"
        assert min(struct.unpack(">II", header[16:24])) > 400
    (first, *_) = draw(results[:1], tmp_path, "svg")
    assert b"<svg" in first.read_bytes()


def test_plots_without_points_are_not_drawn(tmp_path: Path) -> None:
    """One step draws no line against rates."""
    names = {path.stem for path in draw([result_of(step_of(100))], tmp_path, "svg")}
    assert names == {"latency-size", "percentiles", "timeline"}


def test_results_are_small(tmp_path: Path) -> None:
    """A file that is committed stays readable: a line for each number, no more digits than a measurement has."""
    path = tmp_path / "r.json"
    write_result(path, {"format": "x", "value": 1 / 3, "list": (1, 2)})
    assert json.loads(path.read_text()) == {"format": "x", "value": 0.333333, "list": [1, 2]}


def test_lines_of_plots() -> None:
    """Lines go by rising rate, however a search went; results of one scenario are told apart by their routes."""
    steps = [step_of(rate) for rate in (100, 400, 200)]
    by_route = [result_of(*steps) for _ in range(2)]
    by_route[1]["options"]["route"] = "cpu"
    axes = new_figure()[1]
    for k, result in enumerate(by_route):
        achieved_against_offered(axes, result, label_of(by_route, k), "C0")
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.get_lines()] == [[100, 200, 400]] * 2
    assert [line.get_label() for line in axes.get_lines()] == ["short, auto", "short, cpu"]
