"""What tests wait for ends with the process that was to do it, and says what that process said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.harness import ServiceProcess

WRONG = "--default-model=nobody"
"""The process ends at once, and names it."""


@pytest.mark.parametrize("wait", [ServiceProcess.wait_ready, lambda process: process.eventually(lambda: False)])
def test_a_process_that_has_ended(folder: Path, wait: Callable[[ServiceProcess], object]) -> None:
    """Nothing is waited for any longer; status and last lines are told."""
    with pytest.raises(AssertionError, match="before the process ended") as caught:
        wait(ServiceProcess(folder, WRONG))
    (note,) = caught.value.__notes__
    assert "ended with 2" in note
    assert "nobody" in note


def test_what_it_did_last_counts(folder: Path) -> None:
    """Its last line is one that a test may wait for."""
    process = ServiceProcess(folder, WRONG)
    process.eventually(lambda: any("nobody" in line for line in process.lines))
    assert process.wait_exit() == 2


def test_other_failures(folder: Path) -> None:
    """Whatever goes wrong while it runs, or in a condition, is told with its last lines, once."""

    def fail() -> bool:
        raise ZeroDivisionError

    process = ServiceProcess(folder, WRONG)
    process.wait_exit()

    def test() -> None:
        try:
            process.eventually(fail)
        finally:
            process.stop()

    with pytest.raises(ZeroDivisionError) as caught:
        test()
    (note,) = caught.value.__notes__
    assert "nobody" in note
