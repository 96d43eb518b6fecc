"""A client in a process of its own, and its report."""

from __future__ import annotations

import gc
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import numpy as np

from loadtest.api import Api, make_api
from loadtest.client import Client, Record
from loadtest.errors import UnreadableAnswer
from loadtest.options import LoadOptions
from loadtest.plan import Plan, load_plan
from loadtest.pool import open_pool
from loadtest.target import Target
from loadtest.wire import HttpWire

PREPARED_BYTES = 256 << 20
"""Memory for requests that are made before the start, of all processes together."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one client process is told."""

    folder: Path
    plan_name: str
    client: int
    target: Target
    options: LoadOptions

    @property
    def record_path(self) -> Path:
        """Where it leaves its record."""
        return self.folder / f"record-{self.client}.npz"


@dataclass(frozen=True, slots=True)
class Effort:
    """What a client process took itself."""

    wall_s: float
    cpu_s: float
    """Without the time in which it only looked whether it was time."""
    n_connections: int


def serve(assignment: Assignment, pipe: Pipe) -> None:
    """Body of the process: say `ready`, get the start, send numbers of requests done, then the effort."""
    # Ctrl-C is for the whole group of processes; this one has nothing to say about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    options = assignment.options
    pool = open_pool(assignment.folder)
    plan = load_plan(assignment.folder / assignment.plan_name)
    plan = plan.take(plan.rows_of_client(assignment.client, options.clients))
    api = make_api(options.api, options.codec, options.model)
    client = Client(
        plan,
        pool,
        assignment.target,
        HttpWire(assignment.target.authority, headers_of(options)),
        api,
        connections=options.connections // options.clients,
        timeout_s=options.timeout_s,
        probe=options.probe,
    )
    client.prepare(PREPARED_BYTES // options.clients)
    # Everything made so far stays; looking through it again and again would stop the client for milliseconds.
    gc.collect()
    gc.freeze()
    pipe.send("ready")
    start_ns: int = pipe.recv()
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    record = client.run(start_ns, pipe.send)
    cpu_s = time.process_time() - begin_cpu_s - record.spun_ns * 1e-9
    effort = Effort(time.perf_counter() - begin_s, max(0.0, cpu_s), record.n_connections)
    save_record(assignment.record_path, plan, record, api)
    pipe.send(effort)


def headers_of(options: LoadOptions) -> dict[str, str]:
    """What every request says beside its body."""
    return {} if options.route == "auto" else {"X-Sidetok-Route": options.route}


def save_record(path: Path, plan: Plan, record: Record, api: Api) -> None:
    """Write outcomes and the ids to check; an answer whose ids cannot be read is kept as unreadable."""
    rows, counts, ids, unreadable = [], [], [], []
    for row, answer in record.answers.items():
        try:
            documents = api.ids(int(plan.kind[row]), answer)
        except UnreadableAnswer:
            unreadable.append(row)
            continue
        rows.append(row)
        counts.append([len(document) for document in documents])
        ids += documents
    np.savez(
        path,
        sent_ns=record.sent_ns,
        done_ns=record.done_ns,
        outcome=record.outcome,
        n_bytes=record.n_bytes,
        checked_rows=np.array(rows, np.int64),
        unreadable_rows=np.array(unreadable, np.int64),
        n_documents=np.array([len(row) for row in counts], np.int64),
        counts=np.array([n for row in counts for n in row], np.int64),
        ids=np.concatenate(ids) if ids else np.empty(0, np.uint32),
    )
