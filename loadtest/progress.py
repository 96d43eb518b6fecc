"""A progress bar on a terminal; nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loadtest.step import Progress as Report

if TYPE_CHECKING:
    from rich.progress import TaskID


@contextmanager
def shown() -> Iterator[Report]:
    """A function that draws how far each step is, on standard error. Without the package `rich` it draws nothing."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield lambda name, n_done, n_all: None
        return
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(name: str, n_done: int, n_all: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=n_all)
            bar.update(tasks[name], completed=n_done)

        yield report
