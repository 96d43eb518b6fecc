"""Metrics of GPUs: what models that were removed leave behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dispatcher.costs import Costs
from dispatcher.gpu.route_tally import RouteTally
from service.gpu_metrics import gpu_metrics

NAMES = {"d0": "served"}


def samples_of(gpus: Any) -> list[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every sample."""
    return [
        (sample.name, sample.labels, sample.value)
        for family in gpu_metrics(gpus, {}, NAMES)
        for sample in family.samples
    ]


def test_removed_models_repeat_no_sample() -> None:
    """Two of them have the same labels: their replays are one sample, and nobody asks what they cost."""
    tally, costs = RouteTally(), Costs()
    for digest in ("d0", "d1", "d2"):
        tally.completed(digest, 4096, 10, 1, 1_000)
        costs.observe_gpu_route(digest, "ascii", 10, 1, 1_000, 1_000, 1, 0, 1_000)
    tally.forget("d1")
    snapshots = {0: tally.snapshot(True, 0, 0, 0, 0)}
    gpus = SimpleNamespace(snapshots=lambda: snapshots, statuses=lambda: (), costs=costs)
    samples = samples_of(gpus)
    keys = [(name, *sorted(labels.items())) for name, labels, _value in samples]
    assert len(keys) == len(set(keys))
    replayed = {
        labels["model"]: value for name, labels, value in samples if name == "sidetok_gpu_replayed_documents_total"
    }
    assert replayed == {"served": 1, "": 2}
    assert {labels["model"] for name, labels, _value in samples if name == "sidetok_route_cost_seconds"} == {"served"}


def test_second_replays() -> None:
    """Those over text that the device brought into normal form are counted by GPU, and do not count as replays."""
    tally = RouteTally()
    tally.completed("d0", 4096, 10, 1, 1_000)
    tally.n_second += 1
    snapshots = {3: tally.snapshot(True, 0, 0, 0, 0)}
    gpus = SimpleNamespace(snapshots=lambda: snapshots, statuses=lambda: (), costs=None)
    values = {name: (labels, value) for name, labels, value in samples_of(gpus)}
    assert values["sidetok_gpu_second_replays_total"] == ({"gpu": "3"}, 1)
    assert values["sidetok_gpu_replay_duration_seconds_count"][1] == 1
