"""Settings: flags over environment over defaults, one rule for names, one line for bad values."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.options import ServiceOptions
from service.settings import parse_serve, passed_sockets, settings_of, with_cache_dir

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = settings_of(ServiceOptions) + settings_of(DispatcherOptions) + settings_of(GpuRouteOptions)


def value_of(field: str, argv: list[str], environ: Mapping[str, str] | None = None) -> Any:
    """One field of the options that these arguments and this environment give."""
    for options in parse_serve(argv, environ or {}):
        if hasattr(options, field):
            return getattr(options, field)
    raise LookupError(field)


def complaint(argv: list[str], capsys: pytest.CaptureFixture[str], environ: Mapping[str, str] | None = None) -> str:
    """What a refused command line prints; it must be one line, with exit status 2."""
    with pytest.raises(SystemExit) as end:
        parse_serve(argv, environ or {})
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sidetok serve: ")
    assert err.count("\n") == 1
    return err


def test_nothing_given_is_the_defaults() -> None:
    """Without flags and environment the options are those of the dataclasses."""
    assert parse_serve([], {}) == (ServiceOptions(), DispatcherOptions(), GpuRouteOptions())


@pytest.mark.parametrize("options", [ServiceOptions, DispatcherOptions, GpuRouteOptions])
def test_every_field_is_a_setting_with_documentation(options: type) -> None:
    """No knob can be added that has no flag, no variable or no line of documentation."""
    settings = settings_of(options)
    assert [s.field for s in settings] == [f.name for f in fields(options)]
    assert all(s.doc.endswith(".") and "\n" not in s.doc for s in settings)


def test_names_are_unique_and_follow_one_rule() -> None:
    """Flag and variable are the field's name without `_s`; no two settings share one."""
    by_field = {s.field: s for s in SETTINGS}
    assert by_field["drain_timeout_s"].flag == "--drain-timeout"
    assert by_field["drain_timeout_s"].variable == "SIDETOK_DRAIN_TIMEOUT"
    assert by_field["max_in_flight_bytes"].flag == "--max-in-flight-bytes"
    assert len({s.flag for s in SETTINGS}) == len(SETTINGS) == len({s.variable for s in SETTINGS})


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.field)
def test_the_shown_default_is_read_back_as_the_default(setting: Any) -> None:
    """What help and documentation print as the default means the default."""
    assert setting.parse(setting.show(setting.default)) == setting.default


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.field)
def test_flag_beats_variable_beats_default(setting: Any) -> None:
    """Precedence holds for each setting, whatever its type."""
    first, second = other_values(setting)
    environ = {setting.variable: first}
    assert value_of(setting.field, [], environ) == setting.parse(first) != setting.default
    flag = [setting.flag] if setting.type is bool else [f"{setting.flag}={second}"]
    assert value_of(setting.field, flag, environ) == (True if setting.type is bool else setting.parse(second))


def other_values(setting: Any) -> tuple[str, str]:
    """Two allowed texts that do not mean the default."""
    if setting.type is bool:
        return ("off", "on") if setting.default else ("on", "on")
    if setting.choices:
        first, second, *_ = [c for c in setting.choices if c != setting.default] * 2
        return first, second
    texts = {"uds_mode": ("0600", "0666"), "gpus": ("none", "0,1"), "gpu_classes_kib": ("8", "8,16")}
    if setting.field in texts:
        return texts[setting.field]
    return {int: ("5", "7"), float: ("0.25", "0.75")}.get(setting.type, ("a=b", "c=d"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65536),
        ("1.5MiB", 1572864),
        ("2gib", 2 << 30),
        ("3 MB", 3_000_000),
        ("9B", 9),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    """A size is bytes, or a number with a binary or decimal unit in any case."""
    assert value_of("max_body_bytes", ["--max-body-bytes", text]) == expected


def test_large_sizes_are_exact() -> None:
    """Whole sizes are not rounded through a float."""
    assert value_of("max_body_bytes", ["--max-body-bytes", str(2**60 + 1)]) == 2**60 + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("30", 30), ("1.5s", 1.5), ("250ms", 0.25), ("2m", 120), ("1 h", 3600), (".5", 0.5)],
)
def test_durations(text: str, expected: float) -> None:
    """A duration is seconds, or a number with ms, s, m or h."""
    assert value_of("drain_timeout_s", ["--drain-timeout", text]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--port", "http"], "--port: 'http' is not a whole number"),
        (["--port", "65536"], "--port: '65536' is above 65535"),
        (["--port", "-1"], "--port: '-1' is below 0"),
        (["--port", "1_000"], "not a whole number"),
        (["--port"], "--port"),
        (["--shadow-check", "1.01"], "'1.01' is above 1"),
        (["--shadow-check", "nan"], "not a finite number"),
        (["--shadow-check", "a lot"], "not a number"),
        (["--max-body-bytes", "64 megs"], "not a size"),
        (["--max-body-bytes=-1KiB"], "below 0"),
        (["--gpus", "first"], "gpus must be numbers"),
        (["--gpu-classes-kib", "16,8"], "ascending"),
        (["--policy", "fastest"], "is not one of adaptive, cpu, gpu"),
        (["--max-in-flight", "0"], "--max-in-flight: '0' is below 1"),
        (["--keep-alive", "1500ms"], "not a whole number of seconds"),
        (["--drain-timeout", "5 days"], "not a duration"),
        (["--drain-timeout", "inf"], "not a duration"),
        (["--drain-timeout", "1e999s"], "not a finite number"),
        (["--cpu-engine", "gpu"], "'gpu' is not one of auto, fastokens, gigatoken, reference"),
        (["--uds", "/run/s.sock", "--uds-mode", "rw-rw----"], "not an octal file mode"),
        (["--host", ""], "nothing to listen on"),
        (["--drain", "5"], "unrecognized arguments"),
        (["--no-such-flag"], "unrecognized arguments"),
        (["stray"], "unrecognized arguments"),
    ],
)
def test_a_bad_command_line_is_one_line_and_status_2(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad values and unknown flags, abbreviations included, are refused with a line that names them."""
    assert part in complaint(argv, capsys)


@pytest.mark.parametrize(
    ("variable", "text"), [("SIDETOK_PORT", "x"), ("SIDETOK_ACCESS_LOG", "maybe"), ("SIDETOK_DIALECT", "tgi")]
)
def test_a_bad_variable_is_named(variable: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad value from the environment is reported under the variable's name, not the flag's."""
    assert complaint([], capsys, {variable: text}).startswith(f"sidetok serve: {variable}: {text!r} ")


def test_a_flag_hides_a_bad_variable() -> None:
    """What the flag overrides is not even read."""
    assert value_of("port", ["--port", "1"], {"SIDETOK_PORT": "x"}) == 1


def test_repeatable_flags_and_their_variable() -> None:
    """Each flag adds a value, commas and all; the variable holds several, separated by commas."""
    assert value_of("model", ["--model", "a=/a,b", "--model", "c=/c"]) == ("a=/a,b", "c=/c")
    assert value_of("model", [], {"SIDETOK_MODEL": "a=/a, c=/c,"}) == ("a=/a", "c=/c")
    assert value_of("model", ["--model", "x=/x"], {"SIDETOK_MODEL": "a=/a"}) == ("x=/x",)


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_switches(text: str) -> None:
    """A switch has a flag for each side; its variable takes the usual words."""
    assert value_of("access_log", [], {"SIDETOK_ACCESS_LOG": text}) is True
    assert value_of("access_log", ["--no-access-log"], {"SIDETOK_ACCESS_LOG": text}) is False


def test_empty_variables() -> None:
    """An empty variable is not set, except for text, where it is the empty text."""
    environ = {"SIDETOK_PORT": "", "SIDETOK_ACCESS_LOG": "", "SIDETOK_MODEL": "", "SIDETOK_HOST": ""}
    service, _, _ = parse_serve(["--uds", "/run/s.sock"], environ)
    assert service == ServiceOptions(host="", uds="/run/s.sock")


def test_service_links_of_kubernetes_are_not_settings() -> None:
    """A Service named sidetok makes Kubernetes set SIDETOK_PORT to an address; the port stays what it was."""
    assert value_of("port", [], {"SIDETOK_PORT": "tcp://10.0.0.1:80"}) == ServiceOptions().port


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/sidetok"),
        ({"HOME": "/h"}, "/h/.cache/sidetok"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/sidetok"),
        ({}, ""),
    ],
)
def test_the_cache_directory_is_the_users(environ: dict[str, str], expected: str) -> None:
    """Without --cache-dir the proofs are kept where the user's caches are; with it, there."""
    assert parse_serve([], environ)[1].cache_dir == expected
    assert with_cache_dir(DispatcherOptions(cache_dir="/mine"), environ).cache_dir == "/mine"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, [3, 4]),
        ({"LISTEN_PID": "8", "LISTEN_FDS": "2"}, []),
        ({"LISTEN_FDS": "2"}, []),
        ({"LISTEN_PID": "7", "LISTEN_FDS": "two"}, []),
        ({"LISTEN_PID": "7"}, []),
    ],
)
def test_sockets_are_passed_to_one_process(environ: dict[str, str], expected: list[int]) -> None:
    """Only the process that is named takes them: a child of it inherits the variables and not the sockets."""
    assert list(passed_sockets(environ, pid=7)) == expected


def test_help_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """`sidetok serve --help` is complete and exits with 0."""
    with pytest.raises(SystemExit) as end:
        parse_serve(["--help"], {})
    assert end.value.code == 0
    words = re.findall(r"[\w-]+", capsys.readouterr().out)
    assert {s.flag for s in SETTINGS} | {s.variable for s in SETTINGS} <= set(words)


def test_the_settings_page_is_up_to_date() -> None:
    """docs/settings.md is what the option dataclasses say."""
    command = [sys.executable, str(ROOT / "scripts" / "make_settings_page.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
