"""What a run will send: one row for each request, made before the run and the same for equal seeds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadtest.pool import Places
from loadtest.schedule import Times

SINGLE, BATCH, CONVERSATION, PROBE = 0, 1, 2, 3
"""Kinds of requests: one document; several; one document whose pieces are the messages of a conversation; a GET."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Requests in the order of their intended starts. Arrays have one row for each, but for those of documents."""

    at_ns: Times
    kind: NDArray[np.uint8]
    group: NDArray[np.int16]
    refused: NDArray[np.bool_]
    """Whether the right answer is an error of the caller: the request is wrong on purpose."""
    checked: NDArray[np.bool_]
    """Whether the ids of the answer are kept and compared with the reference."""
    client: NDArray[np.int32]
    """Which client process sends it, before the remainder by their number is taken."""
    first_document: Places
    """Row k's documents are those from `first_document[k]` to `first_document[k + 1]`."""
    start: Places
    length: Places
    groups: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def has_ids(self) -> NDArray[np.bool_]:
        """Whether the right answer to each request holds ids."""
        found: NDArray[np.bool_] = ~self.refused & (self.kind != PROBE)
        return found

    @property
    def n_bytes(self) -> Places:
        """Bytes of text of each request."""
        totals = np.concatenate(([0], np.cumsum(self.length)))
        return totals[self.first_document[1:]] - totals[self.first_document[:-1]]

    def documents(self, row: int) -> list[tuple[int, int]]:
        """Start and length of each document, or each message, of a request."""
        first, end = self.first_document[row : row + 2].tolist()
        return list(zip(self.start[first:end].tolist(), self.length[first:end].tolist(), strict=True))

    def take(self, rows: NDArray[np.int64]) -> Plan:
        """The plan of some of the rows, in the order given."""
        counts = np.diff(self.first_document)[rows]
        ends = np.cumsum(counts)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        documents = np.repeat(self.first_document[:-1][rows], counts) + within
        return replace(
            self,
            **{name: getattr(self, name)[rows] for name in ("at_ns", "kind", "group", "refused", "checked", "client")},
            first_document=np.concatenate(([0], ends)).astype(np.int64),
            start=self.start[documents],
            length=self.length[documents],
        )

    def rows_of_client(self, client: int, n_clients: int) -> NDArray[np.int64]:
        """The rows that one client process sends."""
        return np.flatnonzero(self.client % n_clients == client)

    def save(self, path: Path) -> None:
        """Write the plan as one `.npz`."""
        np.savez(path, **{field.name: np.asarray(getattr(self, field.name)) for field in fields(self)})  # type: ignore[arg-type]


def load_plan(path: Path) -> Plan:
    """Read what `save` wrote."""
    with np.load(path) as file:
        arrays = dict(file)
    groups = tuple(map(str, arrays.pop("groups")))
    return Plan(**arrays, groups=groups)


class PlanBuilder:
    """Collects requests of several streams and puts them in order."""

    def __init__(self) -> None:
        self._groups: list[str] = []
        self._parts: list[Plan] = []

    def add(
        self,
        group: str,
        at_ns: Times,
        start: Places,
        length: Places,
        *,
        counts: Places | None = None,
        kind: int = SINGLE,
        refused: bool = False,
        client: NDArray[np.int64] | None = None,
    ) -> None:
        """Add a stream; `counts` says how many documents each request has (one, if it is not given)."""
        n = len(at_ns)
        if n == 0:
            return
        if group not in self._groups:
            self._groups.append(group)
        counts = np.ones(n, np.int64) if counts is None else counts
        self._parts.append(
            Plan(
                at_ns=at_ns,
                kind=np.full(n, kind, np.uint8),
                group=np.full(n, self._groups.index(group), np.int16),
                refused=np.full(n, refused),
                checked=np.zeros(n, bool),
                client=np.full(n, -1, np.int32) if client is None else client.astype(np.int32),
                first_document=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
                start=start.astype(np.int64),
                length=length.astype(np.int64),
                groups=(),
            )
        )

    def build(self) -> Plan:
        """The plan of everything that was added. Requests that no client was chosen for are dealt in turn."""
        parts = self._parts or [_EMPTY]
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("at_ns", "kind", "group", "refused", "checked", "client", "start", "length")
        }
        counts = np.concatenate([np.diff(part.first_document) for part in parts])
        first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        plan = Plan(**joined, first_document=first, groups=tuple(self._groups))
        plan = plan.take(np.argsort(plan.at_ns, kind="stable"))
        dealt = np.where(plan.client < 0, np.arange(len(plan)), plan.client).astype(np.int32)
        return replace(plan, client=dealt)


def with_sample(plan: Plan, n: int, max_bytes: int, from_ns: int, rng: np.random.Generator) -> Plan:
    """The plan with up to `n` requests marked for the check of their ids, in turn from each group.

    Requests that are wrong on purpose and probes have no ids, and those before `from_ns` are not measured.
    """
    sizes = plan.n_bytes
    queues = []
    for group in range(len(plan.groups)):
        rows = np.flatnonzero((plan.group == group) & plan.has_ids & (plan.at_ns >= from_ns))
        if len(rows):
            queues.append(rng.permutation(rows).tolist())
    checked = np.zeros(len(plan), bool)
    left, n_left = max_bytes, n
    while queues and n_left > 0:
        for queue in list(queues):
            row = queue.pop()
            if sizes[row] <= left and n_left > 0:
                checked[row] = True
                left -= int(sizes[row])
                n_left -= 1
            # What does not fit any more ends its group, or a search for small ones would bias the sample.
            if not queue or not checked[row]:
                queues.remove(queue)
    return replace(plan, checked=checked)


_EMPTY = Plan(
    at_ns=np.empty(0, np.int64),
    kind=np.empty(0, np.uint8),
    group=np.empty(0, np.int16),
    refused=np.empty(0, bool),
    checked=np.empty(0, bool),
    client=np.empty(0, np.int32),
    first_document=np.zeros(1, np.int64),
    start=np.empty(0, np.int64),
    length=np.empty(0, np.int64),
    groups=(),
)
