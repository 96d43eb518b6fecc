"""Putting the record of a verification together."""

import json
from pathlib import Path

import pytest

from gpu_core.record import is_current, source_digest
from tests.gpu_core.device_record import make_record, summary

MEMCHECK = "========= COMPUTE-SANITIZER\n720 documents equal\n========= ERROR SUMMARY: 0 errors\n"
RACECHECK = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"


def results(folder: Path, **changes: str) -> Path:
    """A folder of a verification that went well, but for the changes."""
    checks = {
        "sources": source_digest(),
        "counts": {"gpt2: books": 9},
        "needs_cpu": {},
        "wrong": [],
        "device": {"device": "a device"},
    }
    files = {
        "checks.json": json.dumps(checks),
        "timings.json": json.dumps({"calls": [{"input": "books", "call_us": 12.345}]}),
        "memcheck.log": MEMCHECK,
        "racecheck.log": RACECHECK,
    }
    for name, text in (files | changes).items():
        (folder / name).write_text(text)
    return folder


def test_a_good_verification(tmp_path: Path) -> None:
    """What was checked and measured is in the record, together with the sources it is about."""
    record = make_record(results(tmp_path), "2026-01-02")
    assert is_current(record)
    assert record.checks == {"gpt2: books": 9}
    assert record.sanitizer["memcheck"] == "0 errors"
    assert record.timings == [{"part": "calls", "input": "books", "call_us": 12.3}]


def test_sources_that_changed_since(tmp_path: Path) -> None:
    """The record is about the sources that were on the device, whatever lies here by now."""
    folder = results(tmp_path)
    checks = json.loads((folder / "checks.json").read_text())
    (folder / "checks.json").write_text(json.dumps(checks | {"sources": "of another day"}))
    assert not is_current(make_record(folder, "2026-01-02"))


@pytest.mark.parametrize(
    "changes",
    [
        {"memcheck.log": MEMCHECK.replace("0 errors", "2 errors")},
        {"racecheck.log": RACECHECK.replace("0 hazards", "1 hazards")},
        {"racecheck.log": "killed"},
        {"checks.json": json.dumps({"counts": {"a": 1}, "wrong": ["b"], "device": {}})},
        {"checks.json": json.dumps({"counts": {}, "wrong": [], "device": {}})},
    ],
)
def test_a_bad_one_has_no_record(tmp_path: Path, changes: dict[str, str]) -> None:
    """One wrong document, one finding of a sanitizer, or a tool that did not end, and there is no record."""
    with pytest.raises(ValueError, match=r"wrong|clean"):
        make_record(results(tmp_path, **changes), "2026-01-02")


def test_summary_of_several_processes() -> None:
    """Every summary in a log must be clean."""
    assert summary(MEMCHECK + MEMCHECK) == "0 errors"
    assert summary(MEMCHECK + MEMCHECK.replace("0 errors", "1 error")) is None
