"""Several servers in turn: each round the same texts for all, medians, and who was better by how much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.cli import CANNOT_RUN, NOT_RIGHT, main
from loadtest.errors import BadOption, BadResult
from loadtest.options import LoadOptions
from loadtest.result import Result, read_result
from loadtest.versus import FORMAT, Contender, parse_contenders, run_versus, went_wrong
from loadtest.versus_report import gains, medians, versus_report, versus_table
from tests.end_to_end.harness import ServiceProcess
from tests.loadtest.fake_server import faking, http, ids_of_bytes
from tests.loadtest.long_enough import long_enough

BRIEF = LoadOptions(duration_s=0.3, warm_up_s=0.1, clients=1, check=5, timeout_s=60.0, sizes="700,3000", rate="40")


def quiet(name: str, n_done: int, n_total: int) -> None:
    """No progress bar."""


def twice(service: ServiceProcess) -> list[Contender]:
    """One service under two names, by both of its sockets."""
    pid = service.process.pid
    return parse_contenders([f"ours=unix:{service.uds}@{pid}", f"theirs=http://127.0.0.1:{service.port}@{pid}"])


def small(home: Path, **changes: Any) -> LoadOptions:
    """Small texts, judged by the reference."""
    return replace(BRIEF, text=str(home / "texts"), tokenizer=str(home / "tokenizer.json"), **changes)


def is_judged(result: Result) -> bool:
    """Whether every turn has answers whose ids were compared, and none that failed."""
    steps = [step for turn in result["turns"] for step in turn["steps"]]
    return all(step["n_equal"] > 0 and not step["failures"] for step in steps)


def turn(name: str, k: int, p50_us: float, per_s: float, cpu_us: float | None, **changes: Any) -> dict[str, Any]:
    """One run against a server, with one step of known figures."""
    step = {
        "requests": "1,024 bytes", "n": 10, "per_s": per_s, "latency_us": {"p50": p50_us, "p99": 2 * p50_us},
        "cpu_us": cpu_us, "failures": {}, "probes": None, "n_equal": 2, "n_different": 0, "generator_busy": 0.1,
        "generator_limits": False, **changes,
    }  # fmt: skip
    started = "2026-01-01T00:00:00Z"
    return {"contender": name, "round": k, "started": started, "load_average_before": 0.5 * k, "steps": [step]}


def compared(*turns: dict[str, Any], **options: Any) -> Result:
    """A result with these turns."""
    names = dict.fromkeys(turn["contender"] for turn in turns)
    return {
        "format": FORMAT, "scenario": "closed", "about": "what it is", "n_rounds": 3,
        "machine": {"cpu": "some CPU", "usable_cpus": 2}, "texts": {"origin": "made"},
        "options": {"api": "vllm", "clients": 1, "duration_s": 2.0, "seed": 1, "probe": "", **options},
        "contenders": {name: {"version": "1.2"} for name in names}, "turns": list(turns),
    }  # fmt: skip


def test_rounds_take_turns(service: ServiceProcess, home: Path) -> None:
    """Each round starts with another server and has the same requests for all of them; nothing names a folder."""
    result = long_enough(lambda s: run_versus("closed", small(home, duration_s=s), twice(service), 2, quiet), is_judged)
    assert [(t["round"], t["contender"]) for t in result["turns"]] == [
        (1, "ours"), (1, "theirs"), (2, "theirs"), (2, "ours"),
    ]  # fmt: skip
    for step in (step for t in result["turns"] for step in t["steps"]):
        assert step["n"] > 0
        assert step["n_equal"] > 0
    assert not went_wrong(result)
    assert [*medians(result)] == ["700 bytes", "3,000 bytes"]
    assert (result["options"]["tokenizer"], result["options"]["text"]) == ("tokenizer.json", "texts")
    assert str(home) not in str(result)


def test_rendered_ids_are_compared_among_servers(service: ServiceProcess, home: Path) -> None:
    """What the reference cannot judge is judged by the server before; the first one of a round by nobody."""
    options = small(home, api="vllm-render", model="chat", sizes="3000", messages=6)
    result = long_enough(
        lambda s: run_versus("closed", replace(options, duration_s=s), twice(service), 1, quiet),
        lambda result: result["turns"][1]["steps"][0]["n_equal"] > 0,
    )
    assert [t["steps"][0]["n_equal"] > 0 for t in result["turns"]] == [False, True]
    assert list(medians(result)) == ["3,000 bytes in 6 messages"]


def test_open_loops_and_probes(service: ServiceProcess, home: Path) -> None:
    """Any scenario can be compared; its steps are named by their rates, and probes have a row."""
    result = run_versus("short", small(home, api="vllm", probe="/health", scale=0.1), twice(service), 1, quiet)
    assert list(medians(result)) == ["40/s"]
    table = versus_table([result])
    assert "| `/tokenize`, `short` at 40/s |" in table
    assert "| `/health` beside it, p50 / p99 |" in table
    assert "x, –, " in table


def test_gains() -> None:
    """Medians over the rounds; how much better the first is than the best of the others in each figure by itself."""
    rounds = [(100.0, 5000.0, 90.0), (110.0, 4000.0, 100.0), (900.0, 100.0, 800.0)]
    turns = [turn("ours", k, *figures) for k, figures in enumerate(rounds)]
    turns += [turn("a", 0, 440.0, 1000.0, 500.0), turn("b", 0, 550.0, 2000.0, 400.0)]
    figures = medians(compared(*turns))["1,024 bytes"]
    assert figures["ours"]["p50_us"] == 110
    assert gains(figures) == {"p50": 4.0, "CPU": 4.0, "rate": 2.0}
    table = versus_table([compared(*turns)])
    assert "| `/tokenize`, 1,024 bytes | 110 us / 220 us, 4,000, 100 us |" in table
    assert table.endswith("| 4.00x, 2.00x, 4.00x |")


def test_nothing_came_back() -> None:
    """A server that answers nothing has no figures, and nobody is better than it."""
    none = turn("theirs", 1, 1.0, 0.0, None, latency_us=None, failures={"timed out": 1})
    result = compared(turn("ours", 1, 100.0, 10.0, 50.0), none)
    assert gains(medians(result)["1,024 bytes"]) == {"p50": None, "CPU": None, "rate": None}
    assert went_wrong(result)
    assert "1 requests failed" in versus_report([result])


def test_reports_of_several_results() -> None:
    """One table for all results with the same servers, with what was compared and who was at a limit."""
    first = compared(turn("ours", 1, 100.0, 10.0, 50.0), turn("theirs", 2, 1.0, 1.0, 1.0, generator_limits=True))
    text = versus_report([first, first])
    assert text.count("| `/tokenize`, 1,024 bytes |") == 2
    assert "load average before a run 0.5 to 1.0" in text
    assert "* closed, ours: version 1.2; ids of 2 answers equal, 0 different; 0 requests failed" in text
    assert "which LIMITS it" in text
    with pytest.raises(BadResult, match="different servers"):
        versus_report([first, compared(turn("theirs", 1, 1.0, 1.0, 1.0), turn("ours", 1, 1.0, 1.0, 1.0))])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "two servers or more"),
        (["a=http://127.0.0.1:1@1"], "two servers or more"),
        (["a=http://127.0.0.1:1@1", "a=http://127.0.0.1:2@1"], "a name of its own"),
        (["a=http://127.0.0.1:1", "b=http://127.0.0.1:2@1"], "is not NAME=ADDRESS@PID"),
        (["a=ftp://h:1@1", "b=http://127.0.0.1:2@1"], "ftp"),
    ],
)
def test_contenders_that_cannot_be(texts: list[str], message: str) -> None:
    """A server needs a name of its own, an address and a process."""
    with pytest.raises(BadOption, match=message):
        parse_contenders(texts)


def test_the_command(service: ServiceProcess, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes a result that `report` reads, and fails when ids differ or no round is asked for."""
    ours = f"ours=unix:{service.uds}@{service.process.pid}"
    flags = ["--warm-up", "0", "--clients", "1", "--sizes", "400", "--rounds", "1"]
    flags += ["--text", str(home / "texts"), "--tokenizer", str(home / "tokenizer.json")]
    path = str(tmp_path / "r.json")
    same = ["versus", "closed", "--contender", ours, "--contender", "b" + ours, *flags, "--output", path]
    assert long_enough(lambda s: main([*same, "--duration", f"{1000 * s:.0f}ms"]), lambda status: status == 0) == 0
    assert main(["report", path]) == 0
    assert capsys.readouterr().out.count("| `/v1/encode`, 400 bytes |") == 2
    assert read_result(Path(path), FORMAT)["n_rounds"] == 1
    with faking(lambda number, body: http(200, ids_of_bytes(body))) as server:
        wrong = f"wrong=http://127.0.0.1:{server.port}@{service.process.pid}"
        command = ["versus", "closed", "--contender", ours, "--contender", wrong, *flags, "--output", path]
        command += ["--duration", "400ms"]
        assert main(command) == NOT_RIGHT
    assert main([*command, "--rounds", "0"]) == CANNOT_RUN
