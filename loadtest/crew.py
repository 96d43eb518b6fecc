"""Client processes: started together, told one start, watched until they are done."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from loadtest.client_process import Assignment, Effort, serve
from loadtest.errors import ClientDied

START_IN_NS = 200_000_000
START_LIMIT_S = 120.0
END_LIMIT_S = 60.0
"""How long after the last timeout the processes may take to write their records."""


def run_crew(assignments: list[Assignment], schedule_s: float, progress: Callable[[int], None]) -> list[Effort]:
    """Run one client process for each assignment; `progress` gets the number of requests done.

    Raises `ClientDied` when one ends early or does not end. No process is left behind, whatever happens.
    """
    # Forked processes would share locks with whatever threads this one has.
    context = multiprocessing.get_context("spawn")
    members: list[tuple[BaseProcess, Pipe]] = []
    try:
        for assignment in assignments:
            ours, theirs = context.Pipe()
            process: BaseProcess = context.Process(target=serve, args=(assignment, theirs), daemon=True)
            process.start()
            theirs.close()
            members.append((process, ours))
        _await_ready(members)
        start_ns = time.monotonic_ns() + START_IN_NS
        for _, pipe in members:
            pipe.send(start_ns)
        limit_s = schedule_s + assignments[0].options.timeout_s + END_LIMIT_S
        return _await_end(members, time.monotonic() + limit_s, progress)
    finally:
        for process, _ in members:
            if process.is_alive():
                process.kill()
            process.join()


def _await_ready(members: list[tuple[BaseProcess, Pipe]]) -> None:
    until_s = time.monotonic() + START_LIMIT_S
    for process, pipe in members:
        if not pipe.poll(max(0.0, until_s - time.monotonic())):
            raise ClientDied("a client process did not start in time")
        _receive(process, pipe)


def _await_end(
    members: list[tuple[BaseProcess, Pipe]], until_s: float, progress: Callable[[int], None]
) -> list[Effort]:
    done = [0] * len(members)
    efforts: dict[int, Effort] = {}
    while len(efforts) < len(members):
        running = {pipe: k for k, (_, pipe) in enumerate(members) if k not in efforts}
        ready = wait(list(running), max(0.0, until_s - time.monotonic()))
        if not ready:
            raise ClientDied("a client process did not end in time")
        for pipe in ready:
            assert isinstance(pipe, Pipe)
            k = running[pipe]
            message = _receive(members[k][0], pipe)
            if isinstance(message, Effort):
                efforts[k] = message
            elif isinstance(message, int):
                done[k] = message
        progress(sum(done))
    return [efforts[k] for k in range(len(members))]


def _receive(process: BaseProcess, pipe: Pipe) -> object:
    try:
        message: object = pipe.recv()
    except (EOFError, ConnectionError) as error:
        process.join(1)
        raise ClientDied(f"a client process ended early, with status {process.exitcode}") from error
    return message
