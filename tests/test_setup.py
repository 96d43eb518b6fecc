"""The build: plain unless asked for, and what is compiled is fit for it."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("service", "dispatcher", "gpu_core", "deploy", "loadtest")


def build(monkeypatch: pytest.MonkeyPatch, command: str, compiled: str) -> dict[str, Any]:
    """What `setup.py` asks setuptools for, and its global names."""
    asked: dict[str, Any] = {}
    library = ModuleType("setuptools")
    vars(library).update(setup=asked.update, Extension=object)
    monkeypatch.setitem(sys.modules, "setuptools", library)
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    monkeypatch.setenv("SIDETOK_COMPILE", compiled)
    return {"names": runpy.run_path(str(ROOT / "setup.py")), "asked": asked}


def modules(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is compiled when it is asked for."""
    return [ROOT / name for name in build(monkeypatch, "egg_info", "")["names"]["COMPILED"]]


def test_plain_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, or with another value, nothing is compiled and nothing more is needed."""
    for compiled in ("", "0"):
        assert build(monkeypatch, "bdist_wheel", compiled)["asked"] == {}


def test_pip_is_told_what_the_compiler_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks before it has brought anything, so nothing is imported then."""
    asked = build(monkeypatch, "egg_info", "1")["asked"]
    assert [need.partition(">")[0].partition("<")[0] for need in asked["setup_requires"]] == ["mypy", "numpy"]


def test_no_class_of_a_compiled_module_is_derived_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """That fails where the module is compiled; nor is a subclass of NumPy's arrays among them."""
    compiled = modules(monkeypatch)
    trees = {path: ast.parse(path.read_text()) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert set(compiled) <= trees.keys()
    classes = {node.name for path in compiled for node in trees[path].body if isinstance(node, ast.ClassDef)}
    for path, tree in trees.items():
        bases = {
            ast.unparse(base)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
            if path not in compiled or "ndarray" in ast.unparse(base)
        }
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        assert not bases & (classes - own), path
        assert path not in compiled or not any("ndarray" in base for base in bases), path


def test_texts_are_compared_by_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled modules have constants of their own: `is` would differ."""
    for path in modules(monkeypatch):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
                assert not ast.unparse(node.comparators[0]).isupper(), f"{path.name}:{node.lineno}"
