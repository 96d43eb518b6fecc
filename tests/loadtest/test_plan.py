"""Plans: in order, dealt to clients without loss, with a sample to check from every group."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from loadtest.plan import BATCH, PlanBuilder, load_plan, with_sample
from tests.loadtest.results import plan_of


def test_streams_are_put_in_order() -> None:
    """Requests of several streams are sorted by their starts and keep their documents."""
    builder = PlanBuilder()
    builder.add("single", np.array([10, 30]), np.array([100, 300]), np.array([1, 3]))
    builder.add("batch", np.array([20]), np.array([7, 8]), np.array([2, 2]), counts=np.array([2]), kind=BATCH)
    plan = builder.build()
    assert plan.at_ns.tolist() == [10, 20, 30]
    assert [plan.documents(row) for row in range(3)] == [[(100, 1)], [(7, 2), (8, 2)], [(300, 3)]]
    assert plan.n_bytes.tolist() == [1, 4, 3]
    assert [plan.groups[k] for k in plan.group] == ["single", "batch", "single"]
    assert plan.kind.tolist() == [0, BATCH, 0]


def test_clients_share_a_plan() -> None:
    """Each request belongs to one client; those with a client of their own keep it."""
    builder = PlanBuilder()
    builder.add("any", np.arange(10), np.zeros(10, np.int64), np.ones(10, np.int64))
    builder.add("session", np.array([100, 200]), np.zeros(2, np.int64), np.ones(2, np.int64), client=np.array([1, 1]))
    plan = builder.build()
    shares = [plan.rows_of_client(k, 3) for k in range(3)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(12))
    assert {10, 11} <= set(shares[1].tolist())
    assert max(map(len, shares)) <= 6


def test_part_of_a_plan() -> None:
    """Rows that are taken keep everything that belongs to them."""
    builder = PlanBuilder()
    builder.add("b", np.arange(4), np.arange(8) * 10, np.arange(8), counts=np.full(4, 2), kind=BATCH)
    part = builder.build().take(np.array([3, 1]))
    assert part.at_ns.tolist() == [3, 1]
    assert [part.documents(row) for row in range(2)] == [[(60, 6), (70, 7)], [(20, 2), (30, 3)]]


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A plan read from its file is the plan that was written."""
    plan = plan_of(("a", [1, 3], False), ("b", [2], True))
    plan.save(tmp_path / "plan.npz")
    loaded = load_plan(tmp_path / "plan.npz")
    assert loaded.groups == ("a", "b")
    assert loaded.at_ns.tolist() == plan.at_ns.tolist()
    assert loaded.refused.tolist() == [False, True, False]
    assert loaded.documents(1) == plan.documents(1)


def test_sample_covers_every_group() -> None:
    """Few answers are checked, but some of each group, none before the measured time, none that must be refused."""
    plan = plan_of(("many", list(range(0, 1000)), False), ("few", [500, 700], False), ("bad", [600], True))
    sampled = with_sample(plan, 10, 1 << 20, 400_000_000, np.random.default_rng(1))
    groups = [plan.groups[k] for k in plan.group[sampled.checked]]
    assert len(groups) == 10
    assert groups.count("few") == 2
    assert "bad" not in groups
    assert (plan.at_ns[sampled.checked] >= 400_000_000).all()


def test_sample_is_bounded_in_bytes() -> None:
    """The text that is compared stays under its limit."""
    plan = plan_of(("a", list(range(100)), False), n_bytes=1000)
    sampled = with_sample(plan, 50, 10_500, 0, np.random.default_rng(1))
    assert sampled.checked.sum() == 10


def test_an_empty_plan() -> None:
    """No requests are a plan, too."""
    plan = PlanBuilder().build()
    assert len(plan) == 0
    assert with_sample(plan, 5, 100, 0, np.random.default_rng(1)).checked.tolist() == []
