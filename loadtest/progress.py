"""A progress bar on a terminal; nothing where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from loadtest.step import Progress as Report


@contextmanager
def shown() -> Iterator[Report]:
    """A function that draws how far each step is, on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(name: str, n_done: int, n_total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=n_total)
            bar.update(tasks[name], completed=n_done)

        yield report
