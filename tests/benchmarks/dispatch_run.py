"""One run of open-loop load against one target, and the row of figures that comes of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loadtest.schedule import Times
from tests.benchmarks.dispatch_cpu import CpuTimes, cpu_times, parts_of
from tests.benchmarks.dispatch_load import (
    N_SAMPLES,
    Generator,
    Load,
    Offered,
    Record,
    Target,
    documents_of,
    rest_of,
    schedule,
)
from tests.gpu_core.device_data import Reference

DRAIN_S = 4.0
"""How long after the last intended start answers are waited for."""
SETTLED = 0.2
"""Part of a run that is left out of the latencies at its beginning."""
Row = dict[str, Any]
Counters = Mapping[str, float]


class CountingTarget(Target, Protocol):
    """A target with counters that only grow; a row has what a run added to them."""

    def counters(self) -> Counters:
        """Counters by name."""


class Trial:
    """Documents, their intended starts and the reference's ids of a sample: the same for every target."""

    def __init__(
        self,
        documents: Sequence[bytes],
        due_ns: Times,
        reference: Reference,
        *,
        seed: int = 0,
        n_samples: int = N_SAMPLES,
    ) -> None:
        self.documents, self.due_ns = documents, due_ns
        self._seed, self._n_samples = seed, n_samples
        samples = self._record().samples
        ids = reference.ids([documents[sample] for sample in samples])
        self.expected = {sample: ids_of_one.tobytes() for sample, ids_of_one in zip(samples, ids, strict=True)}

    @classmethod
    def of(cls, load: Load, corpora: Mapping[str, bytes], reference: Reference, n_samples: int = N_SAMPLES) -> Trial:
        """Windows of the corpora at the times of the load."""
        return cls(documents_of(load, corpora), schedule(load), reference, seed=load.seed, n_samples=n_samples)

    @property
    def rate(self) -> float:
        """Documents per second, as it came out: arrivals are drawn."""
        return len(self.due_ns) / max(int(self.due_ns[-1]), 1) * 1e9

    def run(
        self,
        target: CountingTarget,
        cpus: set[int] | None,
        counts: NDArray[np.bool_] | None = None,
        drain_s: float = DRAIN_S,
        **labels: Any,
    ) -> Row:
        """Offer the documents to a target from a thread on `cpus`. Only latencies where `counts` is true are taken."""
        record = self._record()
        # The texts of a run are a hundred thousand objects, which nobody wants to see a collection of.
        gc.collect()
        gc.freeze()
        generator = Generator(target, self.due_ns, self.documents, record, cpus)
        counted, cpu = target.counters(), cpu_times()
        generator.start()
        generator.join()
        record.wait(drain_s, rest_of(target))
        after, counted_after = cpu_times(), target.counters()
        offered, n_answered = generator.offered, int(np.count_nonzero(record.n_answers))
        row: Row = {"target": target.name, **labels, "n_documents": len(self.documents)}
        row |= latencies(self.due_ns, offered, record, counts)
        row |= _cpu(_parts(cpu, after, offered), offered, n_answered)
        row["documents_per_group"] = len(self.documents) / offered.n_groups
        row |= {"wrong": self._wrong(record), "faults": sorted(set(record.faults))}
        return row | _counted(counted, counted_after, row["seconds"])

    def _record(self) -> Record:
        return Record(len(self.documents), self._seed, self._n_samples)

    def _wrong(self, record: Record) -> int:
        """Samples whose ids differ from the reference, and documents that were answered twice."""
        differ = sum(self.expected[sample] != ids for sample, ids in record.kept.items())
        return differ + int(np.count_nonzero(record.n_answers > 1))


def latencies(due_ns: Times, offered: Offered, record: Record, counts: NDArray[np.bool_] | None = None) -> Row:
    """Latency from the intended start (where `counts`), rate of answers, and what was not answered."""
    done = record.done_ns - offered.start_ns
    was_answered = record.n_answers > 0
    is_counted = was_answered.copy() if counts is None else was_answered & counts
    is_counted[: int(len(due_ns) * SETTLED)] = False
    took = (done - due_ns)[is_counted] / 1000
    late = (offered.sent_ns - offered.start_ns - due_ns) / 1000
    end = int(done[was_answered].max(initial=1))
    p50, p95, p99, worst = np.percentile(took, (50, 95, 99, 100)).tolist() if took.size else [None] * 4
    return {
        "p50_us": p50,
        "p95_us": p95,
        "p99_us": p99,
        "max_us": worst,
        "achieved_per_s": int(was_answered.sum()) / max(end - int(due_ns[0]), 1) * 1e9,
        "seconds": end / 1e9,
        "refused": int(record.was_refused.sum()),
        "unanswered": int((~was_answered & ~record.was_refused).sum()),
        "compared": len(record.kept),
        "late_p50_us": float(np.median(late)),
        "late_p99_us": float(np.percentile(late, 99)),
    }


def _parts(before: CpuTimes, after: CpuTimes, offered: Offered) -> dict[str, int]:
    """CPU time of the service by part. The generator has ended, so that its time is among that of other threads."""
    parts = {"submit": offered.submit_cpu_ns, "turn": offered.turn_cpu_ns, **parts_of(before, after)}
    # That of the benchmark, which only waits.
    parts.pop("MainThread", None)
    generator = offered.submit_cpu_ns + offered.turn_cpu_ns + offered.own_cpu_ns
    parts["other threads"] = max(0, parts["other threads"] - generator)
    return parts


def _cpu(parts: Mapping[str, int], offered: Offered, n_answered: int) -> Row:
    """CPU time per document. The generator's own is no part of the service's."""
    each = 1 / max(n_answered, 1) / 1000
    service = sum(parts.values())
    return {
        "host_cpu_us": service * each,
        "cpu_parts_us": {name: used * each for name, used in parts.items() if used * each >= 0.05},
        "generator_cpu_us": offered.own_cpu_ns * each,
        "all_cpu_us": (service + offered.own_cpu_ns) * each,
    }


def _counted(before: Counters, after: Counters, seconds: float) -> Row:
    """Shares and means from the counters that a target has."""
    grown = {name: after[name] - before.get(name, 0) for name in after}
    row: Row = {"counters": grown}
    if batches := grown.get("replays"):
        row["documents_per_replay"] = grown["replayed"] / batches
        row["replay_us"] = grown["replay_ns"] / batches / 1000
        row["gpu_busy"] = grown["replay_ns"] / 1e9 / seconds
    if answered := grown.get("gpu_documents", 0) + grown.get("cpu_documents", 0):
        row["gpu_share"] = grown.get("gpu_documents", 0) / answered
    return row


def warm_up(target: Target, documents: Sequence[bytes], seconds: float, first: int = 1) -> None:
    """Offer documents in groups of growing size for a while: clocks rise, caches fill, costs are learned.

    There is at least one group, of the `first` ones.
    """
    until_s = time.perf_counter() + seconds
    size, is_over = first, False
    while not is_over:
        group = documents[:size]
        record = Record(len(group), n_samples=0)
        target.submit(0, group, record)
        record.wait(60.0 if size == first else DRAIN_S, rest_of(target))
        is_over = time.perf_counter() >= until_s
        size = size % len(documents) + 1 if size < 16 else (size * 2) % (len(documents) + 1) or 1


def check(target: Target, documents: Sequence[bytes], reference: Reference) -> int:
    """Compare the ids of documents with the reference before anything is timed. Raises when one differs."""
    for start in range(0, len(documents), 64):
        group = documents[start : start + 64]
        record = Record(len(group), n_samples=len(group))
        target.submit(0, group, record)
        if not record.wait(60.0, rest_of(target)):
            raise RuntimeError(f"{target.name}: {len(group)} documents were not answered within a minute")
        for i, ids in enumerate(reference.ids(list(group))):
            if record.kept.get(i) != ids.tobytes():
                raise ValueError(f"{target.name}: document {start + i} differs")
    return len(documents)
