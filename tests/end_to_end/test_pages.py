"""The pages: what they tell a reader to type gives what they say it gives."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.harness import ROOT, ServiceProcess, serving

ADDRESS = "http://127.0.0.1:8400"
SOCKET = "/tmp/sidetok-$(id -u)/sidetok.sock"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of that language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> Iterator[tuple[str, str]]:
    """Every command at a prompt, and the lines that it prints."""
    for page in ("README.md", "docs/api.md"):
        for block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, output = re.split(r"(?<!\\)\n", part, maxsplit=1)
                yield command, output


@pytest.fixture(scope="module")
def embedded(home: Path) -> Iterator[ServiceProcess]:
    """A process that serves the embedded model, as `scripts/run` does."""
    with serving(home, "--cpu-engine=reference", uds=home / "pages") as process:
        yield process


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("od"), reason="needs curl and od")
@pytest.mark.parametrize(("command", "output"), list(commands()))
def test_a_command_prints_what_the_page_shows(embedded: ServiceProcess, command: str, output: str) -> None:
    """Each `$ ` line of a console block, run against a fresh service, prints the lines below it."""
    here = command.replace(ADDRESS, f"http://127.0.0.1:{embedded.port}").replace(SOCKET, str(embedded.uds))
    result = subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=True)
    assert result.stdout.rstrip("\n") == output.rstrip("\n")


def test_the_python_example_holds(embedded: ServiceProcess) -> None:
    """The Python of the API page runs as it stands; its assertions are its claims."""
    (source,) = blocks("docs/api.md", "python")
    assert ADDRESS in source
    here = source.replace(ADDRESS, f"http://127.0.0.1:{embedded.port}")
    result = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
