"""Whole runs against a running service: every scenario, every codec and API, and what faults do to a result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import server_metrics, stepping
from loadtest import step as step_module
from loadtest.cli import CANNOT_RUN, NOT_RIGHT, main, went_wrong
from loadtest.errors import BadOption, TargetUnreachable
from loadtest.options import LoadOptions
from loadtest.result import read_result
from loadtest.run import run
from loadtest.scenarios import SCENARIOS
from loadtest.server import wait_for, wait_for_route
from loadtest.target import parse_target
from tests.end_to_end.harness import ServiceProcess
from tests.loadtest.fake_server import Reply, faking, http, ids_of_bytes
from tests.loadtest.long_enough import long_enough

SMALL = LoadOptions(
    rate="40", duration_s=0.6, warm_up_s=0.1, clients=1, scale=0.01, check=30, long_rate=60.0, timeout_s=60.0
)

BRIEF = ["--rate", "40", "--duration", "500ms", "--warm-up", "0", "--clients", "1", "--scale", "0.02"]


def quiet(name: str, n_done: int, n_total: int) -> None:
    """No progress bar."""


def run_small(name: str, service: ServiceProcess, home: Path, **changes: Any) -> dict[str, Any]:
    """A short run against the service, its ids checked."""
    fixed = {"target": f"unix:{service.uds}", "tokenizer": str(home / "tokenizer.json")}
    return run(name, replace(small(home), **{**fixed, **changes}), quiet)


def small(home: Path) -> LoadOptions:
    """Enough to see that everything is right, from small texts; nothing depends on how fast it is."""
    return replace(SMALL, text=str(home / "texts"))


def all_steps(shows: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], bool]:
    """Whether every step of a result shows something."""
    return lambda result: all(map(shows, result["steps"]))


def assert_right(result: dict[str, Any]) -> dict[str, Any]:
    """Everything was answered as it should be, and ids of every group were compared; returns the last step."""
    assert json.loads(json.dumps(result)) == result
    for step in result["steps"]:
        assert step["failures"] == {}
        equality = step["equality"]
        assert (equality["checked"], equality["n_different"], equality["groups_not_checked"]) == (True, 0, [])
        assert equality["n_equal"] > 0
    last: dict[str, Any] = result["steps"][-1]
    return last


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if not scenario.closed])
def test_every_scenario(name: str, service: ServiceProcess, home: Path) -> None:
    """A scenario offers what it plans, and every answer it looks at is the reference's."""
    step = assert_right(run_small(name, service, home))
    assert step["n_requests"] > 10
    assert step["latency_us"]["p50"] > 0
    assert step["server"]["host_cpu_us_per_request"] > 0
    assert step["server"]["tokens"] > 0
    assert sum(group["n"] for group in step["groups"].values()) == step["n_requests"]
    outcomes = step["server"]["requests_by_outcome"]
    assert sum(outcomes.values()) == step["n_requests"] + step["n_warm_up"]


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("name", ["batch", "hostile"])
def test_every_codec(name: str, codec: str, service: ServiceProcess, home: Path) -> None:
    """The other codecs carry the same documents, batches and worst cases, over TCP."""
    assert_right(run_small(name, service, home, codec=codec, target=f"http://127.0.0.1:{service.port}"))


@pytest.mark.parametrize("name", ["agent", "hostile"])
def test_vllms_wire(name: str, service: ServiceProcess, home: Path) -> None:
    """The same scenarios speak vLLM's `/tokenize`, to whichever server has it."""
    result = run_small(name, service, home, api="vllm")
    assert_right(result)
    assert result["options"]["model"] == "small"


def test_conversations_are_rendered(service: ServiceProcess, home: Path) -> None:
    """Agents ask for rendered chats over TCP; a second socket of the server gives the same ids."""
    places = {"target": f"http://127.0.0.1:{service.port}", "check_against": f"unix:{service.uds}"}
    result = run_small("agent", service, home, api="vllm-render", tokenizer="", model="chat", **places)
    step = assert_right(result)
    assert step["equality"]["n_unjudged"] == 0
    assert result["options"]["model"] == "chat"


def test_one_request_after_the_other(service: ServiceProcess, home: Path) -> None:
    """Each size is a step; each client waits for its answers, and no probe waits for a client."""
    changes = {"clients": 2, "probe": "/health", "probe_rate": 50.0, "sizes": "500,9000"}
    result = long_enough(
        lambda duration_s: run_small("closed", service, home, duration_s=duration_s, **changes),
        all_steps(lambda step: step["n_requests"] > 2 and not step["failures"]),
    )
    assert_right(result)
    for step, n_bytes in zip(result["steps"], (500, 9000), strict=True):
        (load, probes) = step["groups"].values()
        assert abs(load["median_bytes"] - n_bytes) < 4
        assert probes["n"] == round(50 * result["options"]["duration_s"])
        assert step["n_requests"] == load["n"] > 2
        assert step["rate"] == step["achieved_per_s"]
        assert step["saturated"] is None
        assert step["generator"]["n_connections"] == 3
        # What was under way when the time was over is no failure, and no answer.
        n_asked = sum(step["server"]["requests_by_outcome"].values())
        assert 0 <= n_asked - step["n_requests"] - step["n_warm_up"] <= 2


def test_one_conversation_after_the_other(service: ServiceProcess, home: Path) -> None:
    """Requests may be cut into messages, for APIs that have them."""
    changes = {"api": "vllm-render", "model": "chat", "check_against": f"unix:{service.uds}", "tokenizer": ""}
    result = long_enough(
        lambda s: run_small("closed", service, home, duration_s=s, sizes="3000", messages=6, **changes),
        all_steps(lambda step: step["equality"]["n_equal"] > 0 and not step["failures"]),
    )
    step = assert_right(result)
    assert list(step["groups"]) == ["3,000 bytes in 6 messages"]


def test_a_server_that_never_answers(home: Path) -> None:
    """A closed loop ends with its time, and says that nothing came back."""
    with faking(lambda number, body: None if body else http(404, b"")) as server:
        options = replace(small(home), target=f"http://127.0.0.1:{server.port}", sizes="100", duration_s=0.2)
        result = run("closed", options, quiet)
    assert result["steps"][0]["failures"] == {"timed out": 1}
    assert went_wrong(result)


def test_a_probe_beside_the_load(service: ServiceProcess, home: Path) -> None:
    """A path that is asked by GET has a group, and is in no figure of the load."""
    step = assert_right(run_small("short", service, home, probe="/health", probe_rate=50.0))
    probes = step["groups"]["GET /health"]
    assert probes["n"] == 30
    assert probes["latency_us"]["p50"] > 0
    assert step["n_requests"] == sum(group["n"] for name, group in step["groups"].items() if "GET" not in name)


def test_a_second_server_as_judge(service: ServiceProcess, home: Path) -> None:
    """Ids may be compared with those of another server of the same API instead of the reference."""
    step = assert_right(run_small("agent", service, home, check_against=f"http://127.0.0.1:{service.port}"))
    assert step["equality"]["reference"].startswith("the answers of http://")


def test_several_clients_and_steps(service: ServiceProcess, home: Path) -> None:
    """Rates are run in turn; client processes share each plan, and their effort is in the result."""
    result = run_small("short", service, home, rate="30,60", clients=2)
    assert_right(result)
    assert [step["rate"] for step in result["steps"]] == [30, 60]
    for step in result["steps"]:
        assert len(step["generator"]["busy_by_client"]) == 2
        assert 0 < step["generator"]["busy"] < 1.5


def test_a_route_that_is_asked_for(service: ServiceProcess, home: Path) -> None:
    """Requests may name the route, and the server counts them on it."""
    step = assert_right(run_small("short", service, home, route="cpu"))
    assert set(step["server"]["documents_by_route"]) == {"cpu"}


def test_cpu_time_of_a_local_server(service: ServiceProcess, home: Path) -> None:
    """The kernel's count of a server's CPU time is there for servers that count nothing themselves."""
    result = run_small("short", service, home, server_pid=str(service.process.pid), rate="200")
    assert result["steps"][0]["server_process_cpu_us_per_request"] >= 0
    assert result["server"]["version"]["pid"] == service.process.pid


def test_probes_are_no_requests(service: ServiceProcess, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time is that of a request of the load, however many probes were answered meanwhile."""
    # Of a short run it is a few ticks of the kernel's clock, so what is divided is given.
    seconds = iter((7.0, 8.0))
    monkeypatch.setattr(step_module, "cpu_time_s", lambda pids: next(seconds))
    monkeypatch.setattr(server_metrics, "describe", lambda before, after, n_answered: {"n_answered": n_answered})
    changes = {"probe": "/health", "probe_rate": 1000.0, "server_pid": str(service.process.pid), "rate": "20"}
    (step,) = run_small("short", service, home, **changes)["steps"]
    assert step["groups"]["GET /health"]["n"] > 20 * step["n_requests"]
    n_answered = step["server"]["n_answered"]
    assert step["n_requests"] <= n_answered <= step["n_requests"] + step["n_warm_up"]
    assert step["server_process_cpu_us_per_request"] == pytest.approx(1e6 / n_answered)


def test_busy_neighbours(service: ServiceProcess, home: Path) -> None:
    """Busy processes run beside the load, on the CPUs they are given, do work all the time, and are gone afterwards."""
    cpu = min(os.sched_getaffinity(0))
    result = long_enough(
        lambda s: run_small("short", service, home, duration_s=s, neighbours=2, neighbour_cpus=str(cpu)),
        all_steps(lambda step: step["neighbours"]["work_per_s"] > 0),
    )
    step = assert_right(result)
    assert step["neighbours"]["n"] == 2
    assert step["neighbours"]["work_per_s"] > 0


def test_saturation_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search raises the rate until a server with one slot refuses, and says what was sustained."""
    # Answers that come late are a matter of this host, not of the server.
    monkeypatch.setattr(stepping, "MIN_ACHIEVED", 0.0)

    def script(number: int, body: bytes) -> Reply:
        return http(429, b"{}") if number > 60 else http(200, ids_of_bytes(body))

    with faking(script) as server:
        target = f"http://127.0.0.1:{server.port}"
        result = run("short", replace(small(home), target=target, find_saturation=True, step_factor=2.0), quiet)
    assert result["saturation"]["saturated_at_per_s"] is not None
    assert "failed or were refused" in result["saturation"]["reason"]
    assert result["steps"][-1]["failures"] == {"429 Too Many Requests": pytest.approx(30, abs=60)}
    assert not went_wrong(result)


def test_wrong_ids_are_found(home: Path) -> None:
    """A server that answers fast and wrong fails the run."""
    with faking(lambda number, body: http(200, ids_of_bytes(body))) as server:
        options = replace(small(home), target=f"http://127.0.0.1:{server.port}", tokenizer=str(home / "tokenizer.json"))
        result = run("short", options, quiet)
    assert result["steps"][0]["equality"]["n_different"] > 0
    assert result["steps"][0]["equality"]["n_equal"] == 0
    assert went_wrong(result)


def test_answers_without_ids_are_wrong(home: Path) -> None:
    """An answer of status 200 whose ids cannot be read is no right answer."""
    with faking(lambda number, body: http(200, b"abc")) as server:
        options = replace(small(home), target=f"http://127.0.0.1:{server.port}", tokenizer=str(home / "tokenizer.json"))
        result = run("short", options, quiet)
    assert result["steps"][0]["equality"]["n_unreadable"] > 0
    assert went_wrong(result)


def test_a_check_that_is_off_says_so(home: Path) -> None:
    """Without a tokenizer file and with a server that names none, ids are not checked, and the result says why."""
    with faking(lambda number, body: http(200, ids_of_bytes(body))) as server:
        result = run("short", replace(small(home), target=f"http://127.0.0.1:{server.port}"), quiet)
    equality = result["steps"][0]["equality"]
    assert not equality["checked"]
    assert equality["reference"].startswith("off: ")
    assert result["steps"][0]["server"] is None


def test_a_server_that_dies_during_a_run(home: Path) -> None:
    """The run ends, with every request accounted for and a status that says that it went wrong."""

    def script(number: int, body: bytes) -> Reply:
        if number == 20:
            server.stop()
        return http(200, ids_of_bytes(body))

    with faking(script) as server:
        result = run("short", replace(small(home), target=f"http://127.0.0.1:{server.port}"), quiet)
    (step,) = result["steps"]
    assert sum(step["failures"].values()) > 0
    assert set(step["failures"]) <= {"cannot connect", "connection closed"}
    assert went_wrong(result)


def test_waiting_for_a_route(service: ServiceProcess, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A route that a server does not have is the end of the run; a server that knows no routes has what it has."""
    target = parse_target(f"unix:{service.uds}")
    wait_for_route(target, "small", "cpu", 0)
    with pytest.raises(TargetUnreachable, match="no route gpu: "):
        wait_for_route(target, "small", "gpu", 0.05)
    assert main(["run", "short", "--target", str(target), "--route", "gpu"]) == CANNOT_RUN
    assert "no route gpu" in capsys.readouterr().err
    with faking(lambda number, body: http(200, b'{"data": [{"id": "m"}]}')) as server:
        wait_for_route(parse_target(f"http://127.0.0.1:{server.port}"), "m", "gpu", 0)


def test_no_target(tmp_path: Path) -> None:
    """Without a server there is no run."""
    target = parse_target(f"unix:{tmp_path / 'none'}")
    with pytest.raises(TargetUnreachable):
        wait_for(target, 0.05)
    with pytest.raises(TargetUnreachable):
        run("short", replace(SMALL, target=str(target)), quiet)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("batch", {"api": "vllm"}, "several documents"),
        ("short", {"clients": 0}, "--clients"),
        ("short", {"duration_s": 0.0}, "--duration"),
        ("short", {"rate": "fast"}, "--rate"),
        ("short", {"arrivals": "normal"}, "arrivals"),
        ("short", {"server_pid": "x"}, "--server-pid"),
        ("short", {"neighbour_cpus": "x"}, "--neighbour-cpus"),
        ("short", {"neighbour_cpus": "0-99999"}, "--neighbour-cpus"),
        ("closed", {"sizes": "1,x"}, "--sizes"),
        ("closed", {"sizes": "0"}, "--sizes"),
        ("short", {"text": "/nowhere/at/all"}, "--text"),
    ],
)
def test_options_that_cannot_be(name: str, changes: dict[str, Any], message: str, service: ServiceProcess) -> None:
    """What cannot be understood is said before anything is sent."""
    with pytest.raises(BadOption, match=message):
        run(name, replace(SMALL, target=f"unix:{service.uds}", **changes), quiet)


def test_the_command(
    service: ServiceProcess,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command runs a scenario, prints the table, writes the result; report, compare and capacity read it."""
    monkeypatch.chdir(tmp_path)
    flags = [
        "--rate",
        "40",
        "--duration",
        "500ms",
        "--warm-up",
        "0",
        "--clients",
        "1",
        "--scale",
        "0.02",
        "--wait",
        "60",
    ]
    command = ["run", "short", "--target", f"unix:{service.uds}", "--tokenizer", str(home / "tokenizer.json"), *flags]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "## short" in out
    assert "equal" in out
    assert "sidetok-short.json" in err
    result = read_result(tmp_path / "sidetok-short.json")
    assert result["options"]["duration_s"] == 0.5
    assert main(["report", "sidetok-short.json", "--plots", "plots", "--format", "svg"]) == 0
    assert (tmp_path / "plots" / "percentiles.svg").is_file()
    assert main(["compare", "sidetok-short.json", "sidetok-short.json"]) == 0
    assert "1.00x" in capsys.readouterr().out
    assert main(["capacity", "sidetok-short.json", "--core-hour", "0.05"]) == 0
    assert "| short | CPU |" in capsys.readouterr().out


def test_the_suite(service: ServiceProcess, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The suite writes a result for each route and scenario, with the options that it is known for."""
    places = [
        "--target",
        f"unix:{service.uds}",
        "--tokenizer",
        str(home / "tokenizer.json"),
        "--text",
        str(home / "texts"),
    ]
    command = ["suite", str(tmp_path / "out"), *places, *BRIEF, "--routes", "auto,cpu", "--scenarios", "batch"]
    assert main(command) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["batch-auto.json", "batch-cpu.json"]
    result = read_result(tmp_path / "out" / "batch-cpu.json")
    assert (result["options"]["route"], result["options"]["rate"]) == ("cpu", "10")
    assert capsys.readouterr().out.count("## batch") == 2


def test_the_command_fails_when_answers_do(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong ids are the exit status, whatever the table looks like."""
    with faking(lambda number, body: http(200, ids_of_bytes(body))) as server:
        flags = BRIEF
        places = ["--target", f"http://127.0.0.1:{server.port}", "--output", str(tmp_path / "r.json")]
        status = main(["run", "short", "--tokenizer", str(home / "tokenizer.json"), *places, *flags])
    assert status == NOT_RIGHT
    assert "WRONG" in capsys.readouterr().out
