"""The floor of the dispatcher benchmark encodes what it is given, and takes turns with the dispatcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.gpu.table_builder import read_tables
from gpu_core.ladder import size_classes
from gpu_core.options import GpuOptions
from tests.benchmarks.dispatch_floor import FORMS, LOOKS, NAP, FloorTarget, Form, is_right, measure, medians
from tests.benchmarks.dispatch_load import Record
from tests.benchmarks.still_engine import still_gpu
from tests.benchmarks.test_dispatch import FAMILY
from tests.benchmarks.test_dispatch import data as data
from tests.data import tokenizer_json
from tests.dispatcher.test_local_engine import host
from tests.engine_rig import model, tables_fd
from tests.gpu_core.device_data import DeviceData, Reference

OPTIONS = GpuOptions(size_classes_bytes=(4096,), contexts_per_class=3)


@pytest.mark.parametrize("wait", [NAP, LOOKS])
def test_documents_have_the_ids_of_the_reference(tmp_path: Path, wait: str) -> None:
    """Each is answered once, whether it was received before or not, and more of them than there are contexts."""
    device = host(tmp_path).gpu(OPTIONS).device(model().key, read_tables(os.dup(tables_fd(FAMILY))), OPTIONS)
    (size,) = size_classes(OPTIONS)
    target = FloorTarget(Form("floor", OPTIONS, wait), [device.context(size) for _ in range(3)])
    documents = [b"one two three", "caf\u00e9".encode(), b"x" * 500, b"four", b"five six"]
    record = Record(len(documents), n_samples=len(documents))
    target.submit(0, [target.receive(documents[0])], record)
    target.submit(1, documents[1:], record)
    assert record.wait(60.0, target.rest)
    assert (record.n_answers == 1).all()
    expected = Reference(tokenizer_json(FAMILY)).ids(documents)
    assert [record.kept[i] for i in range(len(documents))] == [ids.tobytes() for ids in expected]
    assert target.counters()["documents"] == len(documents)


def test_all_take_turns(data: DeviceData) -> None:
    """Every target at every rate in each round, and all documents are answered; medians are over the rounds, and rests
    come after all."""
    forms = [form for form in FORMS if form.wait == LOOKS]
    rows, rests = measure(data, (40, 80), 0.05, 2, FAMILY, forms, still_gpu(100.0), (20,))
    assert [row["offered_per_s"] for row in rows] == ([40] * 3 + [80] * 3) * 2
    assert not any(row["unanswered"] or row["faults"] for row in rows)
    assert [row["counters"].get("documents") for row in rows if row["target"] == "floor, looks"] == [2, 4, 2, 4]
    assert [row["rest_us"] for row in rests] == [20]
    assert all(min(row.values()) > 0 for row in rests)
    summary = medians(rows)
    assert [(row["offered_per_s"], row["target"]) for row in summary] == [
        (rate, target) for rate in (40, 80) for target in ("floor, looks", "gpu, reserved", "nothing")
    ]


def test_wrong_ids_are_told() -> None:
    """But for the form that encodes another text than the one that was due."""
    right = {"target": "floor", "wrong": 0, "unanswered": 0}
    assert is_right([right, right | {"target": "floor, there", "wrong": 2}])
    assert not is_right([right, right | {"wrong": 1}])
    assert not is_right([right, right | {"unanswered": 1}])
