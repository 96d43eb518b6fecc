"""What the GPU route counts."""

from __future__ import annotations

import numpy as np
import pytest

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.route_tally import N_SIZES, ClassKey, RouteTally, Sizes
from tests.dispatcher.route_rig import MODEL, US, Rig, cost_of


@pytest.mark.parametrize(
    ("size", "bucket"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1 << 26, 26), (1 << 40, 27)]
)
def test_sizes_by_powers_of_two(size: int, bucket: int) -> None:
    """Bucket k holds what is up to 2^k; the last one the rest."""
    sizes = Sizes()
    sizes.add(np.array([size]))
    assert sizes.counts == [int(at == bucket) for at in range(N_SIZES)]
    assert sizes.sum == size


def test_a_snapshot_is_a_copy() -> None:
    """What is counted later does not change it."""
    tally = RouteTally()
    tally.completed(MODEL, 4096, 10, 1, 1_000, 5)
    before = tally.snapshot(True, 1, 2, 3, 4)
    tally.completed(MODEL, 4096, 10, 1, 1_000, 5)
    tally.lost(MODEL, 4096, 10, 1)
    tally.fell_back("no slot")
    assert before.replays[ClassKey(MODEL, 4096)].times.n == 1
    assert (before.batch_bytes.sum, before.fallbacks, before.engine_cpu_ns) == (10, {}, 5)
    assert (before.ready, before.n_in_flight, before.n_waiting, before.n_waiting_bytes, before.n_held) == (
        *(True, 1, 2, 3, 4),
    )


def test_models_that_are_gone_count_together() -> None:
    """However many come and go, there is one row for each size class; no count gets lost."""
    tally = RouteTally()
    for number in range(3):
        for capacity in (4096, 65_536):
            tally.completed(f"m{number}", capacity, 10, 2, 1_000)
        tally.forget(f"m{number}")
    tally.completed(MODEL, 4096, 10, 1, 1_000)
    tally.forget("never there")
    rows = tally.snapshot(True, 0, 0, 0, 0).replays
    assert {key: (row.times.n, row.n_bytes, row.n_documents) for key, row in rows.items()} == {
        ClassKey("", 4096): (3, 30, 6),
        ClassKey("", 65_536): (3, 30, 6),
        ClassKey(MODEL, 4096): (1, 10, 1),
    }


def test_what_a_route_counts() -> None:
    """Batches, replays by size class with their times, documents without an answer, views, and the queue of now."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    rig.engine.engine_cpu_ns = 7 * US
    rig.engine.needs_cpu = lambda document: "odd" if document == b"!" else None
    rig.submit(bytes(20_000))
    rig.submit(b"!", b"fine")
    rig.submit(bytes(300_000))
    now = rig.route.snapshot()
    assert (now.ready, now.n_in_flight, now.n_waiting, now.n_waiting_bytes) == (True, 1, 3, 300_005)
    rig.run()
    end = rig.route.snapshot()
    assert (end.n_in_flight, end.n_waiting, end.n_waiting_bytes) == (0, 0, 0)
    assert (end.batch_documents.sum, end.batch_bytes.sum) == (4, 320_005)
    assert {key.capacity: (one.times.n, one.n_bytes, one.n_documents) for key, one in end.replays.items()} == {
        4_096: (1, 5, 2),
        65_536: (1, 20_000, 1),
        524_288: (1, 300_000, 1),
    }
    assert end.replays[ClassKey(MODEL, 524_288)].times.sum_s == pytest.approx(cost_of(300_000, 1) * 1e-9, rel=0.2)
    assert (end.needs_cpu, end.n_views, end.n_held, end.engine_cpu_ns) == ({"odd": 1}, 2, 2, 21 * US)
