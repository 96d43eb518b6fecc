"""The runs that the project's own figures come from: the same scenarios and rates on each route, a file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from loadtest.options import LoadOptions
from loadtest.result import Result, write_result
from loadtest.run import run
from loadtest.step import Progress

CHECK_BYTES = 6 << 20
"""Text compared in each step: the reference takes seconds for a megabyte."""


class Run(NamedTuple):
    """A scenario and the options in which it differs from the others."""

    scenario: str
    options: dict[str, Any]


RUNS = (
    Run("short", {"rate": "4000", "find_saturation": True, "step_factor": 2.0, "refine": 1}),
    Run("fleet", {"rate": "37", "find_saturation": True, "step_factor": 4.0, "refine": 1}),
    Run("agent", {"rate": "16,64"}),
    Run("batch", {"rate": "10"}),
    Run("mixed", {"rate": "1000", "long_rate": 4.0}),
)


def run_suite(
    folder: Path, options: LoadOptions, routes: list[str], scenarios: list[str], progress: Progress
) -> Iterator[tuple[Path, Result]]:
    """Run and write one result after the other; yields each with its file."""
    folder.mkdir(parents=True, exist_ok=True)
    for route in routes:
        for scenario, own in RUNS:
            if scenario in scenarios:
                path = folder / f"{scenario}-{route}.json"
                chosen = replace(options, **{"route": route, "check_bytes": CHECK_BYTES, **own})
                result = run(scenario, chosen, _named(route, progress))
                write_result(path, result)
                yield path, result


def _named(route: str, progress: Progress) -> Callable[[str, int, int], None]:
    return lambda name, n_done, n_all: progress(f"{route}: {name}", n_done, n_all)
