"""Files of results: JSON, one run each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.errors import BadResult

FORMAT = "sidetok-loadtest/1"
Result = dict[str, Any]


def write_result(path: Path, result: Result) -> None:
    """Write a result so that a diff of two is readable."""
    path.write_text(json.dumps(_rounded(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_result(path: Path, *forms: str) -> Result:
    """Read a result of one of these formats, or of a run. Raises `BadResult` for anything else."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadResult(f"{path}: cannot be read ({type(error).__name__})") from error
    forms = forms or (FORMAT,)
    if not isinstance(result, dict) or result.get("format") not in forms:
        raise BadResult(f"{path}: is no result in the format {' or '.join(forms)}")
    return result


def _rounded(value: Any) -> Any:
    """Floats with six digits: more than any measurement has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
