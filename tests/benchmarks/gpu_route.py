"""What the GPU route costs the frontend's CPU: an engine that answers at once and costs nothing, on one thread.

    python -m tests.benchmarks.gpu_route

Groups form a batch while the one place in flight is taken; then it is launched, and its results are handed out.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import make_slots
from dispatcher.gpu.group import Group
from dispatcher.gpu.link import Completion, Slot
from dispatcher.gpu.route import GpuRoute

KIB = 1 << 10
MODEL = "m"
SHAPES = (
    *((1, 1, 4), (4, 1, 1), (4, 1, 4), (4, 1, 16), (8, 1, 4), (16, 1, 1), (16, 1, 4), (16, 1, 16)),
    *((1, 8, 4), (1, 16, 4), (4, 4, 4)),
)
"""Groups, documents of each, KiB of each."""
BYTES_PER_TOKEN = 4
N_ROUNDS = 3_000


class InstantEngine:
    """Every launch is complete at the next wait; nothing is encoded."""

    ready = True

    def __init__(self) -> None:
        self._slots = make_slots(MODEL, n_each=3)
        self._completions: list[Completion] = []

    def slots(self, model_key: str) -> Sequence[Slot]:
        """See `EngineLink.slots`."""
        return self._slots

    def launch(self, slot: Slot, n_bytes: int, n_documents: int, flags: int) -> None:
        """See `EngineLink.launch`."""
        np.floor_divide(
            slot.document_starts[: n_documents + 1], BYTES_PER_TOKEN, out=slot.document_tokens[: n_documents + 1]
        )
        self._completions.append(Completion(slot, n_bytes // BYTES_PER_TOKEN, 0, 0))

    def wait(self, timeout_s: float | None) -> list[Completion]:
        """See `EngineLink.wait`."""
        completions, self._completions = self._completions, []
        return completions

    def interrupt(self) -> None:
        """See `EngineLink.interrupt`."""


def measure(n_groups: int, n_documents: int, n_kib: int) -> tuple[float, float, float]:
    """Medians in microseconds: submitting all groups; launching their batch, which comes with the end of a replay of
    one document; handing out its results."""
    route = GpuRoute({}, RouteLimits(max_in_flight=1))
    route.attach(InstantEngine())
    source = random.Random(1)
    documents = [[source.randbytes(n_kib * KIB) for _ in range(n_documents)] for _ in range(n_groups)]
    n_done = 0

    def on_done(_group: Group) -> None:
        nonlocal n_done
        n_done += 1

    def on_fallback(_group: Group, reason: str) -> None:
        raise RuntimeError(reason)

    submitted, launched, handed_out = [], [], []
    for _ in range(N_ROUNDS):
        route.submit(Group(MODEL, [b"takes the place"], on_done, on_fallback))
        start_ns = time.perf_counter_ns()
        for some in documents:
            route.submit(Group(MODEL, some, on_done, on_fallback))
        submitted_ns = time.perf_counter_ns()
        route.turn(0)
        launched_ns = time.perf_counter_ns()
        route.turn(0)
        handed_out.append(time.perf_counter_ns() - launched_ns)
        launched.append(launched_ns - submitted_ns)
        submitted.append(submitted_ns - start_ns)
    if n_done != N_ROUNDS * (n_groups + 1):
        raise RuntimeError("not every group was answered")
    return median(submitted) / 1e3, median(launched) / 1e3, median(handed_out) / 1e3


def main() -> None:
    """Print a table."""
    print("| groups x documents x KiB | submit all, us | launch, us | hand out, us | each document, us |")
    print("|---|---|---|---|---|")
    for shape in SHAPES:
        parts = measure(*shape)
        columns = " | ".join(f"{part:.1f}" for part in parts)
        print(f"| {' x '.join(map(str, shape))} | {columns} | {sum(parts) / (shape[0] * shape[1]):.2f} |")


if __name__ == "__main__":
    main()
