"""The command line: which command runs, what it prints, how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service import __version__
from service.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`sidetok version` and `--version` print name and version."""
    assert main(["version"]) == main(["--version"]) == 0
    assert capsys.readouterr().out == f"sidetok {__version__}\n" * 2


def test_it_runs_as_a_module() -> None:
    """`python -m service.cli` is the same command, for a checkout that is not installed."""
    command = [sys.executable, "-m", "service.cli", "version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"sidetok {__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`sidetok --help` lists the commands on standard output and exits with 0."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {command}" in out for command in ("serve", "inspect", "version"))


@pytest.mark.parametrize("argv", [[], ["srve"], ["--port", "1"], ["version", "now"]])
def test_what_cannot_be_understood_is_one_line_and_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong command line says so on standard error."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sidetok")
    assert err.count("\n") == 1


def test_bad_flag_of_serve_fails_before_the_service_loads() -> None:
    """A wrong flag costs no import of the web framework or the engines."""
    code = (
        "import sys; from service.cli import main\n"
        "try: main(['serve', '--port', 'x'])\n"
        "except SystemExit as end: assert end.code == 2\n"
        "print(sorted(m for m in ('fastapi', 'uvicorn', 'fastokens', 'tokenizers') if m in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
    assert result.stderr == "sidetok serve: --port: 'x' is not a whole number\n"
