"""The metrics of all frontends as those of one service.

Counters and histograms are summed, and those of frontends that ended are kept: a sum that goes down looks like a
restart to Prometheus. Of a gauge each frontend has its own value; `GAUGES` says what they are together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""Name, documentation and type, and its samples: name, labels, value. As it comes from JSON, lists for tuples."""
Key = tuple[str, tuple[tuple[str, str], ...]]
Fold = Callable[[float, float], float]


def _sum(a: float, b: float) -> float:
    return a + b


GAUGES: dict[str, Fold] = {
    "sidetok_in_flight": _sum,
    "sidetok_in_flight_bytes": _sum,
    "sidetok_event_loop_lag_seconds": max,
    "sidetok_cpu_workers": _sum,
    # One that loads beside others that serve accepts nothing yet.
    "sidetok_ready": max,
    "sidetok_build_info": max,
    "sidetok_start_time_seconds": min,
    "sidetok_model_info": max,
    "sidetok_gpu_in_flight": _sum,
    "sidetok_gpu_waiting_documents": _sum,
    "sidetok_gpu_waiting_bytes": _sum,
    "sidetok_gpu_held_slots": _sum,
    "sidetok_gpu_engine_state": _sum,
    "sidetok_gpu_captures": _sum,
    # Of one device, looked at at different times.
    "sidetok_gpu_memory_bytes": min,
    "sidetok_gpu_info": max,
    "sidetok_route_cost_seconds": max,
    "sidetok_route_cpu_cost_seconds": max,
    "process_virtual_memory_bytes": _sum,
    "process_resident_memory_bytes": _sum,
    "process_start_time_seconds": min,
    "process_open_fds": _sum,
    "process_max_fds": min,
}


def families_of(metrics: Iterable[Metric]) -> list[Family]:
    """Metrics in a form that JSON can carry."""
    return [
        (m.name, m.documentation, m.type, [(s.name, dict(s.labels), float(s.value)) for s in m.samples])
        for m in metrics
    ]


class Totals:
    """What frontends reported last, and what those that ended had counted."""

    def __init__(self) -> None:
        self._reports: dict[int, list[Family]] = {}
        self._ended: list[Family] = []

    def report(self, number: int, families: list[Family]) -> None:
        """Keep the newest report of a frontend."""
        self._reports[number] = families

    def end(self, number: int) -> None:
        """Keep what a frontend had counted when it reported last, and forget its gauges."""
        counted = [family for family in self._reports.pop(number, []) if family[2] != "gauge"]
        self._ended = merged([self._ended, counted])

    def render(self, own: list[Family]) -> bytes:
        """The text format of everything, with families of the keeper itself."""
        registry = CollectorRegistry()
        registry.register(_Families(merged([*self._reports.values(), self._ended, own])))
        return generate_latest(registry)


def merged(reports: Iterable[list[Family]]) -> list[Family]:
    """One report for several. Families and samples stay in the order in which they come first."""
    heads: dict[str, tuple[str, str]] = {}
    values: dict[str, dict[Key, float]] = {}
    for families in reports:
        for name, documentation, kind, samples in families:
            heads.setdefault(name, (documentation, kind))
            fold = GAUGES.get(name, _sum) if kind == "gauge" else _sum
            rows = values.setdefault(name, {})
            for sample, labels, value in samples:
                key = (sample, tuple(labels.items()))
                rows[key] = fold(rows[key], value) if key in rows else value
    return [
        (name, *heads[name], [(sample, dict(labels), value) for (sample, labels), value in rows.items()])
        for name, rows in values.items()
    ]


class _Families(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for name, documentation, kind, samples in self._families:
            metric: Any = Metric(name, documentation, kind)
            for sample in samples:
                metric.add_sample(*sample)
            yield metric
