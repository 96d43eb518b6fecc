"""The pages: what they tell a reader to type gives what they say it gives."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.harness import ROOT, ServiceProcess, environment, serving

ADDRESS = "http://127.0.0.1:8400"
ROOMS = {"service", "dispatcher", "gpu_core", "loadtest"}
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


def test_the_files_page_holds(tmp_path: Path) -> None:
    """Its command writes what its Python reads; only the tokenizer and the engine are others here."""
    (tmp_path / "corpus").mkdir()
    texts = ["Hello, world!", "two", "a b c"]
    (tmp_path / "corpus" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (command,) = (line for line in blocks("docs/files.md", "sh")[0].splitlines() if line.startswith("sidetok "))
    program, *arguments = command.replace("--tokenizer /models/Qwen3-8B", "--cpu-engine reference").split()
    cli = f"import sys; from service.cli import main; sys.argv[0] = {program!r}; sys.exit(main(sys.argv[1:]))"
    environ = {**environment(), "XDG_CACHE_HOME": str(tmp_path)}
    for source, more in ((cli, arguments), (blocks("docs/files.md", "python")[0] + "print(third.tolist())", [])):
        result = subprocess.run(
            [sys.executable, "-c", source, *more],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [67, 291, 274, 1]


@pytest.mark.parametrize("page", ["docs/api.md", "docs/files.md", "docs/gpu.md"])
def test_python_on_a_page_names_what_there_is(page: str) -> None:
    """Every block of Python is Python, and every name that it imports from this repository exists."""
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOMS:
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
