"""Scenarios: what each one promises to send, checked on its plan; nothing is sent here."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from loadtest.closed import parse_sizes
from loadtest.options import LoadOptions
from loadtest.plan import BATCH, CONVERSATION, Plan
from loadtest.pool import Pool
from loadtest.run import make_pool
from loadtest.scenarios import SCENARIOS, Setting
from loadtest.scenarios.scenario import BYTES_PER_TOKEN, Dealer
from loadtest.schedule import parse_arrivals
from loadtest.texts import Texts, made_words

TEXTS = Texts("made", {name: made_words(200_000, seed) for seed, name in enumerate(("a", "b", "c"))})
OPTIONS = LoadOptions(duration_s=20.0, warm_up_s=0.0, scale=0.05)


def planned(folder: Path, name: str, rate: float, **changes: object) -> tuple[Plan, Pool]:
    """The plan of a scenario and the texts it refers to."""
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    scenario = SCENARIOS[name]
    pool = make_pool(folder, scenario, options, TEXTS)
    arrivals = parse_arrivals(options.arrivals or scenario.arrivals)
    rng = np.random.default_rng(options.seed)
    n_bytes = parse_sizes(options.sizes)[0] if scenario.closed else 0
    return scenario.plan(Setting(Dealer(pool, options.seed), options, arrivals, rate, rng, n_bytes)), pool


def by_group(plan: Plan, name: str) -> Plan:
    """The requests of one group."""
    return plan.take(np.flatnonzero(plan.group == plan.groups.index(name)))


@pytest.mark.parametrize("name", [name for name, scenario in SCENARIOS.items() if not scenario.closed])
def test_equal_seeds_plan_equal_requests(name: str, tmp_path: Path) -> None:
    """Two plans with one seed are the same; starts ascend and lie in the time that was asked for."""
    (first, pool), (again, _), (other, _) = (planned(tmp_path, name, 20.0, seed=seed) for seed in (1, 1, 2))
    for field in ("at_ns", "start", "length", "group"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
    assert not np.array_equal(first.start, other.start)
    assert (np.diff(first.at_ns) >= 0).all()
    assert first.at_ns[0] >= 0
    assert first.at_ns[-1] < 20e9
    assert len(first) / 20 == pytest.approx(20.0, rel=0.25)
    for row in range(0, len(first), 7):
        for start, n_bytes in first.documents(row):
            assert first.refused[row] or str(pool.text(start, n_bytes), "utf-8")


def test_short(tmp_path: Path) -> None:
    """1 to 16 KiB, log-uniform, a third from each corpus, no place twice."""
    plan, _ = planned(tmp_path, "short", 100.0, scale=1.0)
    sizes = np.log2(plan.length)
    assert 9.99 < sizes.min() < 10.1
    assert 13.9 < sizes.max() < 14.01
    assert np.median(sizes) == pytest.approx(12, abs=0.15)
    assert set(np.bincount(plan.group).tolist()) <= {len(plan) // 3, len(plan) // 3 + 1}
    assert len(np.unique(plan.start)) == len(plan)


def test_agent(tmp_path: Path) -> None:
    """Each call of a session is the text of the one before with 400 to 875 tokens more, and goes to the same client."""
    plan, _ = planned(tmp_path, "agent", 20.0, scale=0.05)
    sizes = [plan.n_bytes[plan.client == session] for session in np.unique(plan.client)]
    grown = np.concatenate([np.diff(calls) for calls in sizes]) / BYTES_PER_TOKEN / 0.05
    assert (plan.kind == CONVERSATION).all()
    assert len(sizes) == pytest.approx(100, abs=10)
    assert grown.min() > 300
    assert grown.max() < 975
    first = np.array([calls[0] for calls in sizes]) / BYTES_PER_TOKEN / 0.05
    assert np.median(first) == pytest.approx(119_000, rel=0.25)
    for session in np.unique(plan.client)[:10]:
        starts = {plan.documents(row)[0][0] for row in np.flatnonzero(plan.client == session).tolist()}
        assert len(starts) == 1


def test_conversations_are_pieces_end_to_end(tmp_path: Path) -> None:
    """The messages of a conversation follow each other without a gap, and the user has the first and the last word."""
    plan, _ = planned(tmp_path, "fleet", 5.0, scale=0.02)
    for row in range(len(plan)):
        pieces = plan.documents(row)
        assert len(pieces) % 2 == 1
        for (start, length), (following, _) in pairwise(pieces):
            assert start + length == following
            assert length > 0


def test_fleet(tmp_path: Path) -> None:
    """Contexts of three sizes; a fifth of the requests continue a session that was opened before."""
    plan, _ = planned(tmp_path, "fleet", 50.0, scale=0.01)
    assert set(plan.groups) == {f"context of {name} tokens" for name in ("121k", "512k", "1M")}
    firsts = plan.start[plan.first_document[:-1]]
    n_opened = len(np.unique(firsts))
    assert 1 - n_opened / len(plan) == pytest.approx(0.2, abs=0.04)
    tokens = by_group(plan, "context of 1M tokens").n_bytes / BYTES_PER_TOKEN / 0.01
    assert tokens.min() == pytest.approx(1_000_000, rel=0.01)


def test_batch(tmp_path: Path) -> None:
    """Batches from 1 to 256 documents of 8k tokens, as many of each size."""
    plan, _ = planned(tmp_path, "batch", 10.0)
    counts = np.diff(plan.first_document)
    assert sorted(set(counts.tolist())) == [1, 4, 16, 64, 256]
    assert (plan.kind == BATCH).all()
    assert np.median(plan.length) == pytest.approx(8192 * BYTES_PER_TOKEN * 0.05, rel=0.01)


def test_mixed(tmp_path: Path) -> None:
    """Long documents come in the second half only, and short prompts have the same rate in both."""
    plan, _ = planned(tmp_path, "mixed", 50.0, long_rate=1.0, scale=0.01)
    long, alone, beside = (by_group(plan, name) for name in ("long", "short alone", "short beside long"))
    assert long.at_ns.min() >= 10e9
    assert alone.at_ns.max() < 10e9 <= beside.at_ns.min()
    assert len(alone) == pytest.approx(len(beside), rel=0.2)
    assert 5 <= len(long) <= 16


@pytest.mark.parametrize("api", ["native", "vllm"])
def test_hostile(api: str, tmp_path: Path) -> None:
    """Every hostile input comes at least once, in the second half; those that no server may answer are marked."""
    plan, pool = planned(tmp_path, "hostile", 20.0, api=api)
    hostile = [name for name in plan.groups if name.startswith("hostile: ")]
    assert {name for name in pool.regions if name.startswith("hostile: ")} <= set(hostile)
    refused = {plan.groups[k] for k in plan.group[plan.refused]}
    assert refused == {"hostile: invalid UTF-8"} | ({"hostile: too many documents"} if api == "native" else set())
    for name in hostile:
        assert by_group(plan, name).at_ns.min() >= 10e9
    assert np.diff(plan.first_document).max() == (16_385 if api == "native" else 1)


def test_burst(tmp_path: Path) -> None:
    """A tenth of the time has eleven times the rate of the rest, and the mean is what was asked for."""
    plan, _ = planned(tmp_path, "burst", 200.0)
    burst, calm = (len(by_group(plan, name)) for name in ("burst", "calm"))
    assert len(plan) / 20 == pytest.approx(200, rel=0.1)
    assert (burst / 2) / (calm / 18) == pytest.approx(11, rel=0.15)


@pytest.mark.parametrize("api", ["native", "vllm"])
def test_soak(api: str, tmp_path: Path) -> None:
    """Every kind takes part; a server that takes one document at a time gets no batches."""
    plan, _ = planned(tmp_path, "soak", 50.0, api=api)
    assert len(plan.groups) == 3
    assert np.diff(plan.first_document).max() == (8 if api == "native" else 1)


def test_streams_share_no_text(tmp_path: Path) -> None:
    """Two streams of one plan, and two plans of one dealer, start nowhere twice."""
    pool = make_pool(tmp_path, SCENARIOS["mixed"], OPTIONS, TEXTS)
    dealer = Dealer(pool, 1)
    arrivals, rng = parse_arrivals("poisson"), np.random.default_rng(1)
    plans = [SCENARIOS["mixed"].plan(Setting(dealer, OPTIONS, arrivals, 50.0, rng)) for _ in range(2)]
    starts = np.concatenate([plan.start for plan in plans])
    assert len(np.unique(starts)) == len(starts)


def test_closed(tmp_path: Path) -> None:
    """Everything is due at once, more than can be sent; the messages of a request lie end to end, whole characters."""
    changes = {"duration_s": 1.0, "clients": 2, "sizes": "8000", "probe": "/health", "probe_rate": 10.0}
    plan, pool = planned(tmp_path, "closed", 1.0, messages=7, **changes)
    load, probes = by_group(plan, plan.groups[0]), by_group(plan, "GET /health")
    assert not load.at_ns.any()
    assert (load.kind == CONVERSATION).all()
    assert np.bincount(load.client).tolist() == [len(load) / 2] * 2
    assert len(load) * (40e-6 + 8000e-9) > 2
    assert set(probes.client.tolist()) == {2}
    for row in range(0, len(load), 1000):
        pieces = load.documents(row)
        assert len(pieces) == 7
        assert all(a + n == b for (a, n), (b, _) in pairwise(pieces))
        assert abs(sum(n for _, n in pieces) - 8000) < 4
        assert all(str(pool.text(*piece), "utf-8") for piece in pieces)
