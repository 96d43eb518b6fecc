"""The dispatcher benchmark runs, on both routes and through the death of an engine; nothing about speed."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.dispatch import CORPORA, Plan, line, run
from tests.benchmarks.dispatch_drills import HUGE_BYTES, SMALL_BYTES, Bench, bursts, long_documents
from tests.benchmarks.test_dispatch_load import Echo
from tests.benchmarks.test_dispatch_load import fake_time as fake_time
from tests.data import tokenizer_json
from tests.engine_rig import WORDS, engine_command
from tests.gpu_core.device_data import DeviceData, Reference

FAMILY = "byte_bpe"


def text_of(n_bytes: int, seed: int) -> str:
    """Words in a random order."""
    return "".join(random.Random(seed).choices(WORDS, k=n_bytes // 6))


@pytest.fixture
def data(tmp_path: Path) -> DeviceData:
    """A folder as the benchmark wants it."""
    (tmp_path / "corpora").mkdir()
    (tmp_path / "tokenizers" / FAMILY).mkdir(parents=True)
    for seed, name in enumerate(CORPORA):
        (tmp_path / "corpora" / f"{name}.txt").write_text(text_of(200_000, seed), encoding="utf-8")
    packed = lzma.compress(tokenizer_json(FAMILY))
    (tmp_path / "tokenizers" / FAMILY / "tokenizer.json.xz").write_bytes(packed)
    return DeviceData(tmp_path)


def test_policies_on_both_routes_and_a_killed_engine(data: DeviceData, tmp_path: Path) -> None:
    """Every document is answered once, with the reference's ids, by whom the policy says, also when an engine dies."""
    plan = Plan(
        parts=("policies", "kill"),
        rates=(80,),
        seconds=0.6,
        kill_rate=40,
        # An eighth of it passes before the kill; what follows is to be seen in the rest.
        kill_seconds=4.0,
        gpus="0",
        n_cpus=2,
        n_checked=30,
        family=FAMILY,
        with_gigatoken=False,
    )
    rows = run(plan, data, engine_command(tmp_path, FAMILY))
    by_target = {row["target"]: row for row in rows["policies"]}
    assert by_target.keys() == {"adaptive", "gpu", "cpu"}
    for row in (*rows["policies"], *rows["kill"]):
        assert (row["wrong"], row["unanswered"], row["refused"], row["faults"]) == (0, 0, 0, [])
        assert row["compared"] == min(64, row["n_documents"])
        assert "p50_us=" in line(row)
    assert by_target["gpu"]["gpu_share"] == 1
    assert by_target["gpu"]["documents_per_replay"] >= 1
    assert by_target["cpu"]["gpu_share"] == 0
    (killed,) = rows["kill"]
    assert (killed["engines"], killed["engines_least"]) == (1, 0)
    assert killed["noticed_ms"] is not None
    json.dumps(rows)


def test_bursts_have_one_huge_document_in_their_midst(data: DeviceData) -> None:
    """A hundred small ones in each burst; the huge one comes in the middle and does not count."""
    corpora = {name: data.corpus(name).encode() * 50 for name in CORPORA}
    bench = Bench(corpora, Reference(tokenizer_json(FAMILY)), None, 0.0)
    documents, due_ns, is_small = bursts(bench, with_huge=True, n_bursts=3)
    assert (np.diff(due_ns) >= 0).all()
    assert is_small.sum() == 300
    assert np.flatnonzero(~is_small).tolist() == [50, 151, 252]
    sizes = np.array([len(document) for document in documents])
    assert sizes[is_small].max() <= SMALL_BYTES
    assert sizes[~is_small].min() > HUGE_BYTES - 4


@pytest.mark.usefixtures("fake_time")
def test_targets_that_fall_behind_are_not_offered_more() -> None:
    """A target that answers too few is left out of higher rates; the others go on."""
    text = text_of(600_000, 1).encode()
    reference = Reference(tokenizer_json(FAMILY))
    bench = Bench({"text": text}, reference, None, float("inf"))
    good, lame = Echo(reference), Echo(reference, lost=frozenset([0]))
    lame.name = "lame"
    rows = list(long_documents(bench, [lame, good], (4, 8), 0.25, n_samples=0, drain_s=0.01))
    assert [row["target"] for row in rows] == ["lame", "echo", "echo"]
    assert not list(long_documents(Bench({}, reference, None, 0.0), [good], (4,), 0.25)), "no time is left"
