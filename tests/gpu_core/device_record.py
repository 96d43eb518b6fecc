"""Puts the results of one verification together into the committed record: see `gpu_core.record`.

python -m tests.gpu_core.device_record FOLDER      with checks.json, memcheck.log, racecheck.log, timings.json if timed
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from gpu_core.record import RECORD, Record, write_record

TOOLS = ("memcheck", "racecheck")


def summary(log: str) -> str | None:
    """The last line in which a sanitizer says how much it found; None when it found something or said nothing."""
    lines = [line.removeprefix("=========").strip() for line in log.splitlines() if "SUMMARY" in line]
    clean = bool(lines) and all(line.split("SUMMARY:")[1].strip().startswith(("0 ", "ERROR 0")) for line in lines)
    return (
        "; ".join(dict.fromkeys(lines)).replace("ERROR SUMMARY: ", "").replace("RACECHECK SUMMARY: ", "")
        if clean
        else None
    )


def make_record(folder: Path, date: str) -> Record:
    """The record of what lies in the folder. Raises `ValueError` when a check failed or is missing."""
    checks = json.loads((folder / "checks.json").read_text())
    if checks["wrong"] or not checks["counts"]:
        raise ValueError(f"{len(checks['wrong'])} documents were wrong")
    sanitizer = {}
    for tool in TOOLS:
        found = summary((folder / f"{tool}.log").read_text())
        if found is None:
            raise ValueError(f"{tool} is not clean: see {tool}.log")
        sanitizer[tool] = found
    path = folder / "timings.json"
    timings = json.loads(path.read_text()) if path.is_file() else {}
    rows = [{"part": part} | row for part, part_rows in timings.items() for row in part_rows]
    rounded = [{k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    return Record(checks["sources"], date, checks["device"], checks["counts"], sanitizer, rounded)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=RECORD)
    arguments = parser.parse_args()
    try:
        record = make_record(arguments.folder, time.strftime("%Y-%m-%d"))
    except ValueError as error:
        print(f"no record: {error}", file=sys.stderr)
        return 1
    write_record(record, arguments.output)
    print(f"recorded {sum(record.checks.values())} checks on {record.device['device']} in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
