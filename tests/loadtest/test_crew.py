"""Client processes: started together, and none is missed or left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadtest.client_process import Assignment
from loadtest.crew import run_crew
from loadtest.errors import ClientDied
from loadtest.observed import collect
from loadtest.options import LoadOptions
from loadtest.plan import Plan, PlanBuilder
from loadtest.pool import write_pool
from loadtest.target import parse_target
from tests.loadtest.fake_server import faking, http, ids_of_bytes

N = 40


def prepared(folder: Path, port: int, n_clients: int, duration_s: float = 0.2) -> tuple[Plan, list[Assignment]]:
    """A plan on disk and its assignments."""
    pool = write_pool(folder, {"a": b"some text " * 100}, 100)
    start, length = pool.windows("a", np.arange(N), np.full(N, 20), 1)
    builder = PlanBuilder()
    builder.add("a", (np.arange(N) * duration_s / N * 1e9).astype(np.int64), start, length)
    plan = builder.build()
    plan.checked[::2] = True
    plan.save(folder / "plan.npz")
    options = replace(LoadOptions(), clients=n_clients, connections=8, timeout_s=20.0)
    target = parse_target(f"http://127.0.0.1:{port}")
    return plan, [Assignment(folder, "plan.npz", k, target, options) for k in range(n_clients)]


def test_shares_add_up(tmp_path: Path) -> None:
    """What the processes saw is joined in the order of the plan, ids with their rows; progress ends at all."""
    reached: list[int] = []
    with faking(lambda number, body: http(200, ids_of_bytes(body))) as server:
        plan, assignments = prepared(tmp_path, server.port, 2)
        efforts = run_crew(assignments, 0.2, reached.append)
    observed = collect(plan, assignments)
    assert len(efforts) == 2
    assert server.n_requests == N
    assert observed.outcome.tolist() == [200] * N
    assert (observed.done_ns >= plan.at_ns).all()
    assert reached == sorted(reached)
    assert sorted(observed.ids) == list(range(0, N, 2))
    text = b"some text " * 103
    for row, (ids,) in observed.ids.items():
        start, n_bytes = plan.documents(row)[0]
        assert bytes(ids.astype(np.uint8)) == text[start : start + n_bytes]


def test_a_client_that_cannot_start(tmp_path: Path) -> None:
    """A process without its texts ends, and the run with it."""
    _, assignments = prepared(tmp_path, 1, 1)
    (tmp_path / "texts.bin").unlink()
    with pytest.raises(ClientDied, match="ended early"):
        run_crew(assignments, 0.2, lambda n_done: None)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_is_killed(tmp_path: Path, number: int) -> None:
    """A process that is killed, or interrupted, on the way ends without a word, and with it the run and the others."""

    def kill_one(n_done: int) -> None:
        for process in multiprocessing.active_children()[:1]:
            assert process.pid
            os.kill(process.pid, number)

    with faking(lambda number, body: http(200, ids_of_bytes(body))) as server:
        _, assignments = prepared(tmp_path, server.port, 2, duration_s=20.0)
        with pytest.raises(ClientDied, match=f"ended early, with status -{number:d}"):
            run_crew(assignments, 20.0, kill_one)
    assert multiprocessing.active_children() == []
