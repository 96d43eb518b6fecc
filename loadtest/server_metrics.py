"""What a server says about itself on `/metrics`, before and after, and the differences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from loadtest.errors import TargetUnreachable
from loadtest.target import Target

LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
Key = tuple[str, tuple[tuple[str, str], ...]]
CPU = "sidetok_host_cpu_seconds_total"
REQUESTS = "sidetok_request_duration_seconds_count"
GPU = "sidetok_gpu_info"
DOCUMENTS = "sidetok_documents_total"
KEPT = re.compile(r"^(sidetok_.*(_total|_count|_sum)|process_cpu_seconds_total)$")


@dataclass(frozen=True, slots=True)
class Scrape:
    """Samples by name and labels; empty when the server has no metrics."""

    samples: dict[Key, float]

    def value(self, name: str) -> float | None:
        """A sample without labels."""
        return self.samples.get((name, ()))


def scrape(target: Target) -> Scrape:
    """What `/metrics` says now; nothing, if there is no such thing or no answer."""
    try:
        status, body = target.get("/metrics")
    except TargetUnreachable:
        return Scrape({})
    return Scrape(parse(body.decode("utf-8", "replace"))) if status == 200 else Scrape({})


def parse(text: str) -> dict[Key, float]:
    """Samples of the Prometheus text format; lines that are none are passed over."""
    samples: dict[Key, float] = {}
    for line in text.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        try:
            samples[match[1], tuple(sorted(LABEL.findall(match[2] or "")))] = float(match[3])
        except ValueError:
            continue
    return samples


def difference(before: Scrape, after: Scrape) -> dict[Key, float]:
    """How far the counters went; what is new counts from zero."""
    return {
        key: value - before.samples.get(key, 0.0)
        for key, value in after.samples.items()
        if KEPT.match(key[0]) and value != before.samples.get(key, 0.0)
    }


def describe(before: Scrape, after: Scrape, n_requests: int) -> dict[str, Any] | None:
    """Host CPU per request, shares of the routes and all counters that moved; None without metrics."""
    if not after.samples:
        return None
    moved = difference(before, after)
    cpu = _by(moved, CPU, "part")
    process_s = sum(value for (name, _), value in moved.items() if name == "process_cpu_seconds_total")
    return {
        "host_cpu_us_per_request": _per(sum(cpu.values()), n_requests),
        "host_cpu_us_by_part": {part: _per(value, n_requests) for part, value in cpu.items()},
        "process_cpu_us_per_request": _per(process_s, n_requests),
        "requests_by_route": _by(moved, REQUESTS, "route"),
        "requests_by_outcome": _by(moved, REQUESTS, "outcome"),
        "documents_by_route": _by(moved, DOCUMENTS, "route"),
        "tokens": sum(_by(moved, "sidetok_tokens_total", "route").values()),
        "gpu_engines": sum(value == 1 for (name, _), value in after.samples.items() if name == GPU),
        "gpu_fallbacks": _by(moved, "sidetok_gpu_fallbacks_total", "reason"),
        "gpu_needs_cpu": _by(moved, "sidetok_gpu_needs_cpu_documents_total", "reason"),
        "guarded_documents": sum(_by(moved, "sidetok_guarded_documents_total", "reason").values()),
        "shed": _by(moved, "sidetok_shed_total", "reason"),
        "memory_bytes": [scraped.value("process_resident_memory_bytes") for scraped in (before, after)],
        "counters": {_spelt(key): value for key, value in sorted(moved.items())},
    }


def _by(moved: dict[Key, float], name: str, label: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for (found, labels), value in moved.items():
        if found == name:
            part = dict(labels).get(label, "")
            sums[part] = sums.get(part, 0.0) + value
    return sums


def _per(seconds: float, n_requests: int) -> float | None:
    return seconds / n_requests * 1e6 if n_requests and seconds else None


def _spelt(key: Key) -> str:
    name, labels = key
    return name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels) + "}" if labels else "")
