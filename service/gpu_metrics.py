"""Metrics of the GPU route, made from snapshots: batches, replays, queues, engines, decisions, observed costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dispatcher.costs import Costs
from dispatcher.gpu.group import FALLBACK_REASONS
from dispatcher.gpu.route_tally import Replays, RouteSnapshot, Sizes
from dispatcher.gpu.supervisor import EngineStatus
from dispatcher.meter import DURATION_BUCKETS_S, Histogram

if TYPE_CHECKING:
    from dispatcher.gpus import Gpus

STATES = ("starting", "ready", "down")
N_DOCUMENT_BOUNDS = 14
"""Powers of two from 1 to 8,192 documents."""
N_BYTE_BOUNDS = 27
"""Powers of two from 1 B to 64 MiB."""


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts with their upper bounds, as the text format wants them."""
    return _cumulative((*map(str, DURATION_BUCKETS_S), "+Inf"), histogram.counts)


def _size_buckets(sizes: Sizes, n_bounds: int) -> list[tuple[str, float]]:
    bounds = [str(1 << k) for k in range(n_bounds)]
    return _cumulative((*bounds, "+Inf"), [*sizes.counts[:n_bounds], sum(sizes.counts[n_bounds:])])


def _cumulative(bounds: Iterable[str], counts: list[int]) -> list[tuple[str, float]]:
    total = 0
    rows = []
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows


def gpu_metrics(gpus: Gpus | None, decisions: dict[tuple[str, str], int], names: dict[str, str]) -> Iterator[Metric]:
    """Every family, empty without GPUs. `decisions` by route and reason, `names` of models by digest."""
    family = CounterMetricFamily(
        "sidetok_route_decisions", "Choices between the routes, where both were open.", labels=("route", "reason")
    )
    for labels, n in decisions.items():
        family.add_metric(labels, n)
    yield family
    snapshots = {str(gpu): snapshot for gpu, snapshot in gpus.snapshots().items()} if gpus else {}
    statuses = {str(status.gpu): status for status in gpus.statuses()} if gpus else {}
    yield from _batches(snapshots)
    yield from _replays(snapshots, names)
    yield from _queues(snapshots)
    yield from _leavings(snapshots)
    yield from _engines(statuses)
    yield from _costs(gpus.costs if gpus else None, names)


def _batches(snapshots: dict[str, RouteSnapshot]) -> Iterator[Metric]:
    documents = HistogramMetricFamily("sidetok_gpu_batch_documents", "Documents of a replay.", labels=("gpu",))
    sizes = HistogramMetricFamily("sidetok_gpu_batch_bytes", "Bytes of text of a replay.", labels=("gpu",))
    for gpu, snapshot in snapshots.items():
        documents.add_metric(
            (gpu,), _size_buckets(snapshot.batch_documents, N_DOCUMENT_BOUNDS), snapshot.batch_documents.sum
        )
        sizes.add_metric((gpu,), _size_buckets(snapshot.batch_bytes, N_BYTE_BOUNDS), snapshot.batch_bytes.sum)
    yield from (documents, sizes)


def _replays(snapshots: dict[str, RouteSnapshot], names: dict[str, str]) -> Iterator[Metric]:
    labels = ("gpu", "model", "size_class")
    times = HistogramMetricFamily(
        "sidetok_gpu_replay_duration_seconds",
        "From launch to completion, as the engine saw it; the count is how often a size class was hit.",
        labels=labels,
    )
    documents = CounterMetricFamily("sidetok_gpu_replayed_documents", "Documents by size class.", labels=labels)
    size = CounterMetricFamily("sidetok_gpu_replayed_bytes", "Bytes of text by size class.", labels=labels)
    for gpu, snapshot in snapshots.items():
        # Those of models that were removed count together.
        rows: dict[tuple[str, str, str], Replays] = {}
        for key, replays in snapshot.replays.items():
            rows.setdefault((gpu, names.get(key.model_key, ""), str(key.capacity)), Replays()).add(replays)
        for row, replays in rows.items():
            times.add_metric(row, buckets(replays.times), replays.times.sum_s)
            documents.add_metric(row, replays.n_documents)
            size.add_metric(row, replays.n_bytes)
    yield from (times, documents, size)


def _queues(snapshots: dict[str, RouteSnapshot]) -> Iterator[Metric]:
    in_flight = GaugeMetricFamily("sidetok_gpu_in_flight", "Replays under way.", labels=("gpu",))
    waiting = GaugeMetricFamily("sidetok_gpu_waiting_documents", "Documents not launched yet.", labels=("gpu",))
    size = GaugeMetricFamily("sidetok_gpu_waiting_bytes", "Bytes of their text.", labels=("gpu",))
    held = GaugeMetricFamily("sidetok_gpu_held_slots", "Slots that handed-out results keep.", labels=("gpu",))
    stage = CounterMetricFamily(
        "sidetok_gpu_stage_cpu_seconds",
        "CPU time of writing texts for the GPU; it is in the parts submit and deliver of host CPU.",
        labels=("gpu",),
    )
    for gpu, snapshot in snapshots.items():
        in_flight.add_metric((gpu,), snapshot.n_in_flight)
        waiting.add_metric((gpu,), snapshot.n_waiting)
        size.add_metric((gpu,), snapshot.n_waiting_bytes)
        held.add_metric((gpu,), snapshot.n_held)
        stage.add_metric((gpu,), snapshot.stage_cpu_ns * 1e-9)
    yield from (in_flight, waiting, size, held, stage)


def _leavings(snapshots: dict[str, RouteSnapshot]) -> Iterator[Metric]:
    fallbacks = CounterMetricFamily(
        "sidetok_gpu_fallbacks", "Groups of documents that left without an answer.", labels=("gpu", "reason")
    )
    needs_cpu = CounterMetricFamily(
        "sidetok_gpu_needs_cpu_documents", "Documents that the device does not answer.", labels=("gpu", "reason")
    )
    rewritten = CounterMetricFamily(
        "sidetok_gpu_rewritten_documents",
        "Documents that were not in normal form, and were sent to the device again in it.",
        labels=("gpu",),
    )
    second = CounterMetricFamily(
        "sidetok_gpu_second_replays",
        "Replays behind others, over text that the device brought into normal form.",
        labels=("gpu",),
    )
    for gpu, snapshot in snapshots.items():
        # All of them from the start: a rate does not see what happens before its counter is there.
        for reason in FALLBACK_REASONS:
            fallbacks.add_metric((gpu, reason), snapshot.fallbacks.get(reason, 0))
        for reason, n in snapshot.needs_cpu.items():
            needs_cpu.add_metric((gpu, reason), n)
        rewritten.add_metric((gpu,), snapshot.n_rewritten)
        second.add_metric((gpu,), snapshot.n_second)
    yield from (fallbacks, needs_cpu, rewritten, second)


def _engines(statuses: dict[str, EngineStatus]) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "sidetok_gpu_engine_state", "Engines that are in this state, one for each frontend.", labels=("gpu", "state")
    )
    restarts = CounterMetricFamily("sidetok_gpu_engine_restarts", "Restarts of the engine.", labels=("gpu",))
    captures = GaugeMetricFamily("sidetok_gpu_captures", "Graphs that are captured.", labels=("gpu",))
    memory = GaugeMetricFamily("sidetok_gpu_memory_bytes", "Memory of the device.", labels=("gpu", "kind"))
    info = GaugeMetricFamily("sidetok_gpu_info", "1 for a device that is up.", labels=("gpu", "name"))
    for gpu, status in statuses.items():
        for state in STATES:
            states.add_metric((gpu, state), int(state == status.state))
        restarts.add_metric((gpu,), status.n_restarts)
        if (facts := status.facts) is not None:
            captures.add_metric((gpu,), facts.n_captures)
            memory.add_metric((gpu, "total"), facts.total_bytes)
            memory.add_metric((gpu, "free"), facts.free_bytes)
            info.add_metric((gpu, facts.name), 1)
    yield from (states, restarts, captures, memory, info)


def _costs(costs: Costs | None, names: dict[str, str]) -> Iterator[Metric]:
    labels = ("route", "model", "kind", "bytes")
    time = GaugeMetricFamily(
        "sidetok_route_cost_seconds",
        "Observed time of a document (cpu) or of a replay (gpu) of about so many bytes.",
        labels=labels,
    )
    cpu = GaugeMetricFamily(
        "sidetok_route_cpu_cost_seconds", "Observed host CPU of a document of about so many bytes.", labels=labels
    )
    for key, curves in (costs.snapshot() if costs else {}).items():
        if key.model not in names:
            continue
        for family, curve in zip((time, cpu), curves, strict=True):
            for at in curve:
                n_bytes = 4**at.size_class
                row = (key.route, names[key.model], key.kind, str(n_bytes))
                family.add_metric(row, (at.fixed_ns + at.byte_ns * n_bytes) * 1e-9)
    yield from (time, cpu)
