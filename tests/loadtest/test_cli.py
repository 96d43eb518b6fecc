"""The command line: flags of every knob, and one line for what cannot be understood."""

from __future__ import annotations

from dataclasses import fields

import pytest

from loadtest.cli import CANNOT_RUN, COMMANDS, main, parse_run, parse_suite, went_wrong
from loadtest.options import LoadOptions
from loadtest.scenarios import SCENARIOS
from loadtest.suite import RUNS
from tests.loadtest.results import result_of, step_of


def test_every_knob_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """The help names all scenarios and all knobs."""
    with pytest.raises(SystemExit) as end:
        parse_run(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for name in SCENARIOS:
        assert name in text
    for flag in (
        "--target",
        "--codec",
        "--rate",
        "--duration",
        "--warm-up",
        "--find-saturation",
        "--think-time",
        "--api",
    ):
        assert flag in text


def test_values() -> None:
    """Values are read with their units; what is not given has its default."""
    arguments = [
        "short",
        "--rate",
        "10,20",
        "--duration",
        "2m",
        "--check-bytes",
        "1MiB",
        "--find-saturation",
        "--scale",
        "0.5",
        "--wait",
        "3",
    ]
    name, options, patience_s = parse_run(arguments)
    assert (name, patience_s) == ("short", 3.0)
    assert options == LoadOptions(rate="10,20", duration_s=120.0, check_bytes=1 << 20, find_saturation=True, scale=0.5)


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["short", "--duration", "long"], ["short", "--codec", "xml"], ["short", "--no-such-flag"], []],
)
def test_what_cannot_be_understood(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line on standard error, and status 2."""
    with pytest.raises(SystemExit) as end:
        parse_run(arguments)
    assert end.value.code == CANNOT_RUN
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sidetok-loadtest run: ")


@pytest.mark.parametrize("flags", [["--routes", "fast"], ["--scenarios", "short,long"], ["--duration", "x"]])
def test_suites_that_cannot_be_understood(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown routes and scenarios are refused before anything is sent."""
    with pytest.raises(SystemExit) as end:
        parse_suite(["folder", *flags])
    assert end.value.code == CANNOT_RUN
    assert capsys.readouterr().err.startswith("sidetok-loadtest suite: ")


def test_the_suite_knows_its_scenarios() -> None:
    """Every run of the suite names a scenario and options that exist."""
    known = {field.name for field in fields(LoadOptions)}
    for scenario, own in RUNS:
        assert scenario in SCENARIOS
        assert set(own) <= known
    arguments, options = parse_suite(["folder", "--duration", "3", "--routes", "cpu,gpu"])
    assert arguments.scenarios == ",".join(run.scenario for run in RUNS)
    assert options == LoadOptions(duration_s=3.0)


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Help names the commands; others are refused, and so is a file that is no result."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    assert main([]) == CANNOT_RUN
    assert main(["fly"]) == CANNOT_RUN
    assert main(["report", "no-such-file.json"]) == CANNOT_RUN
    assert "no-such-file.json" in capsys.readouterr().err


def test_what_is_a_failure() -> None:
    """Wrong ids always, failures unless they are what a search ends with; being slow is none."""
    failures = {"429 Too Many Requests": 500}
    wrong = {"checked": True, "n_different": 1}
    searched = result_of(step_of(100))
    plain = {**searched["options"], "find_saturation": False}
    assert not went_wrong(
        {**searched, "steps": [step_of(100), step_of(200, 50, saturated="behind", failures=failures)]}
    )
    assert went_wrong({**searched, "steps": [step_of(100, failures={"timed out": 1})]})
    assert went_wrong({**searched, "steps": [step_of(100, equality=wrong, saturated="behind")]})
    assert not went_wrong({"options": plain, "steps": [step_of(100, 50, saturated="behind")]})
    assert went_wrong({"options": plain, "steps": [step_of(100, saturated="behind", failures=failures)]})
