"""The repository's own promises: packaging, one reader of the environment, scripts that a shell can run."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from service import __version__

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("service", "dispatcher", "gpu_core", "deploy", "loadtest")
SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SCRIPTS = [
    ".ci/run",
    "scripts/run",
    "scripts/test",
    "scripts/check",
    "scripts/venv",
    "scripts/lock",
    "scripts/rival",
    "deploy/docker/install",
]
READERS = {"getenv", "getenvb", "environb", "expandvars", "expanduser"}

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def relative(path: Path) -> str:
    """The path as it is written in this repository."""
    return path.relative_to(ROOT).as_posix()


def reads_environment(tree: ast.AST) -> bool:
    """Whether a module reads environment variables; setting one for a native library is not reading."""
    written = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and {a.name for a in node.names} & (READERS | {"environ"})
        ):
            return True
        if isinstance(node, ast.Attribute) and (
            node.attr in READERS or (node.attr == "environ" and id(node) not in written)
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os.environ['A'] = 'b'", False),
        ("os.environ['A']", True),
        ("os.environ.get('A')", True),
        ("from os import environ", True),
        ("os.getenv('A')", True),
        ("Path('~').expanduser()", True),
    ],
)
def test_the_check_itself(code: str, expected: bool) -> None:
    """`reads_environment` tells reading from writing."""
    assert reads_environment(ast.parse(code)) is expected


def test_only_settings_read_the_environment() -> None:
    """Whoever wants to know what the environment does to sidetok reads one file."""
    readers = {relative(path) for path in SOURCES if reads_environment(ast.parse(path.read_text(encoding="utf-8")))}
    assert readers == {"service/settings.py"}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_sources_are_packaged(path: Path) -> None:
    """Each module lies in packages all the way up; without an `__init__.py` the wheel would lack it."""
    folders = list(path.relative_to(ROOT).parents)[:-1]
    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_stay_small_enough_to_read(path: Path) -> None:
    """No source file grows beyond what a reader holds in mind."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 420


def test_the_version_has_one_source() -> None:
    """The version stands in `service.__version__` only; the change log has a place for what comes next."""
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Each relative link of a page names a file of this repository."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert broken == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").rglob("*.json")), ids=relative)
def test_results_name_no_place_of_the_machine(path: Path) -> None:
    """Texts, tokenizers and sockets of a committed result are named without the folders that they lay in."""
    assert re.findall(r'"(?:unix:)?/(?!health")[^"]*"', path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_parse(script: str) -> None:
    """A fresh clone can run each script as it is."""
    path = ROOT / script
    assert os.access(path, os.X_OK)
    bash = shutil.which("bash")
    assert bash is not None
    result = subprocess.run([bash, "-n", str(path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_ci_installs_what_tests_look_for() -> None:
    """No test is skipped in CI for the lack of a Python package: each that tests look for is in one of CI's extras."""
    packages = {"dynamo": "ai-dynamo-runtime", "nvidia": "nvidia-cuda-nvrtc"}
    looked_for = {
        packages.get(module, module)
        for path in (ROOT / "tests").rglob("test_*.py")
        for module in re.findall(r"""(?:find_spec|importorskip)\("(\w+)""", path.read_text(encoding="utf-8"))
    }
    scripts = "".join((ROOT / name).read_text(encoding="utf-8") for name in (".ci/run", "scripts/check"))
    extras = {extra for line in re.findall(r"^scripts/venv (.+)$", scripts, re.M) for extra in line.split()}
    installed = {
        re.split(r"[^\w-]", requirement)[0]
        for extra in extras
        for requirement in PROJECT["optional-dependencies"][extra]
    }
    assert looked_for >= {"ray", "transformers", "openai", "anthropic", "ai-dynamo-runtime"}
    # Tests of what is said without CuPy look for its absence.
    assert looked_for - {"cupy"} <= installed


def test_a_script_says_what_is_missing(tmp_path: Path) -> None:
    """Without a suitable Python, `scripts/venv` names what it needs and how to get it."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    work = tmp_path / "work"
    (work / "scripts").mkdir(parents=True)
    shutil.copy2(ROOT / "scripts" / "venv", work / "scripts" / "venv")
    environ = {**os.environ, "PYTHON": str(old)}
    result = subprocess.run([str(work / "scripts" / "venv")], capture_output=True, text=True, check=False, env=environ)
    assert result.returncode == 1
    assert "is not a Python 3.11 or newer" in result.stderr
