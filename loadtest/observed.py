"""What all client processes of one step saw, as one table in the order of the plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.api import Ids
from loadtest.client_process import Assignment
from loadtest.plan import Plan


@dataclass(frozen=True, slots=True)
class Observed:
    """Rows of a plan and what became of them; times in nanoseconds since the start of the schedule."""

    plan: Plan
    sent_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]
    outcome: NDArray[np.int16]
    n_bytes: NDArray[np.int64]
    ids: dict[int, list[Ids]]
    """Of the answers to check, by row of the plan."""
    unreadable: list[int]

    @property
    def latency_ns(self) -> NDArray[np.int64]:
        """From the intended start to the end of the answer."""
        return self.done_ns - self.plan.at_ns

    @property
    def as_planned(self) -> NDArray[np.bool_]:
        """Whether each request got what it should: an answer, or an error where it was wrong on purpose."""
        refused = (self.outcome >= 400) & (self.outcome < 500) & (self.outcome != 429)
        found: NDArray[np.bool_] = np.where(self.plan.refused, refused, self.outcome == 200)
        return found


def collect(plan: Plan, assignments: list[Assignment]) -> Observed:
    """Join the records that client processes left."""
    n = len(plan)
    joined = Observed(
        plan, np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int16), np.zeros(n, np.int64), {}, []
    )
    for assignment in assignments:
        rows = plan.rows_of_client(assignment.client, assignment.options.clients)
        with np.load(assignment.record_path) as record:
            for name in ("sent_ns", "done_ns", "outcome", "n_bytes"):
                getattr(joined, name)[rows] = record[name]
            joined.unreadable.extend(rows[record["unreadable_rows"]].tolist())
            documents = iter(np.split(record["ids"], np.cumsum(record["counts"])[:-1]))
            for row, n_documents in zip(rows[record["checked_rows"]].tolist(), record["n_documents"], strict=True):
                joined.ids[row] = [next(documents) for _ in range(n_documents)]
    return joined
