"""Promises of dispatcher.embedded."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

from dispatcher.embedded import PACKAGE, embedded_tokenizer_json
from gpu_core.errors import TokenizerFileError
from gpu_core.spec import read_spec


def test_package_is_located_and_not_imported() -> None:
    """The data are read from where the package lies; none of its code runs."""
    assert read_spec(embedded_tokenizer_json()).max_id == 129_279
    assert PACKAGE not in sys.modules


@pytest.mark.parametrize("found", [False, True])
def test_missing_package_or_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: bool) -> None:
    """What to install, or what is missing, is said."""
    spec = importlib.machinery.ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if found else None)
    with pytest.raises(TokenizerFileError, match=r"no readable tokenizer\.json" if found else "not installed"):
        embedded_tokenizer_json()
