"""The least that a Python program takes for a long document on a GPU, beside the dispatcher that does it, by turns.

    python -m tests.benchmarks.dispatch_floor DATA [--rates 500,2000] [--rounds 2] [--forms N] [--json FILE]

The load, its documents, the thread that offers them and the way its CPU time is counted are those of
`tests.benchmarks.dispatch --part long --engine local --driven`. What differs is who takes the documents:

    nothing         answered at once: what the offering thread is charged for anyhow
    floor           launch the captured graph, sleep for what is predicted, look at the completion word, read the count
    floor, kernel   the same with the kernel launched, in the place of a graph of it
    floor, event    the same, waiting in the driver for an event, as the device interrupts the host
    floor, looks    the same, with looks at the completion word in the place of sleep
    floor, there    the same, and no text is received: all lie in pinned memory from the beginning
    dispatcher      `Dispatcher.reserve` and `encode_group`, policy `gpu`

With `--rests` also what a rest leaves cold: a text is received, the thread rests, and then the graph is launched, or
the text is submitted to the dispatcher.

Ids of a sample are compared with the reference in every run; where no text is received they are those of another one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dispatcher.gpu.local_engine import MakeGpu
from dispatcher.gpu.options import LOCAL
from gpu_core.errors import DeviceFault
from gpu_core.execution import ExecutionContext, Gpu
from gpu_core.ladder import size_classes
from gpu_core.layout import FLAG_IDS
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from gpu_core.tables import load_tables
from gpu_core.waiting import sharpen_sleep
from tests.benchmarks.dispatch import CORPORA, line, rounded
from tests.benchmarks.dispatch_drills import LONG_BYTES, LONG_SAMPLES, Bench
from tests.benchmarks.dispatch_load import Load, Record
from tests.benchmarks.dispatch_run import Row, Trial, warm_up
from tests.benchmarks.dispatch_service import DispatcherService
from tests.gpu_core.device_data import DeviceData, Reference

CAPACITY = 512 << 10
N_CONTEXTS = 4
NAP, EVENT, LOOKS = "nap", "event", "looks"
LOOKS_AT_A_TIME = 64
LATE_PART, EARLY_PART = 1 / 8, 1 / 128
"""Of a nap: what one that was too short is followed by, and how much shorter the next one is after one that was not."""
PATIENCE_S = 5.0
WARM_UP_S = 0.2
RESTS_US = (20, 50, 100, 150, 200, 300, 500, 1000, 2000, 4000)
N_RESTS = 60
FIGURES = ("p50_us", "p99_us", "host_cpu_us", "launch_us", "nap_us", "read_us", "naps", "late_p50_us")


class Form(NamedTuple):
    """One way to take a document."""

    name: str
    options: GpuOptions
    wait: str = NAP
    receives: bool = True


_GRAPH = GpuOptions(size_classes_bytes=(CAPACITY,), contexts_per_class=N_CONTEXTS)
FORMS = (
    Form("floor", _GRAPH),
    Form("floor, kernel", replace(_GRAPH, eager=True)),
    Form("floor, event", replace(_GRAPH, wait="block"), EVENT),
    Form("floor, looks", _GRAPH, LOOKS),
    Form("floor, there", _GRAPH, NAP, receives=False),
)


class NothingTarget:
    """See `Driving` and `Receiving`: every document is answered when it is offered."""

    name = "nothing"

    def submit(self, first: int, documents: Sequence[Any], record: Record) -> None:
        """See `Target`."""
        record.answered(first, len(documents))

    def receive(self, document: bytes) -> Any:
        """See `Receiving`."""
        return document

    def rest(self, seconds: float) -> int:
        """See `Driving`."""
        begin_ns = time.thread_time_ns()
        time.sleep(seconds)
        return time.thread_time_ns() - begin_ns

    def counters(self) -> dict[str, float]:
        """See `CountingTarget`."""
        return {}


class _Received(NamedTuple):
    context: ExecutionContext
    n_bytes: int


class _Flight(NamedTuple):
    context: ExecutionContext
    number: int
    record: Record
    end_ns: int
    """When it is predicted to be complete."""


class FloorTarget(NothingTarget):
    """See `Driving` and `Receiving`: one replay for each document and nothing else. One after the other is awaited."""

    def __init__(self, form: Form, contexts: Sequence[ExecutionContext]) -> None:
        self.name, self._wait, self._receives = form.name, form.wait, form.receives
        self._free = deque(contexts)
        self._flying: deque[_Flight] = deque()
        self._nap_ns = 0
        self._counted = dict.fromkeys(("documents", "naps", "launch_ns", "read_ns", "nap_ns"), 0)

    def receive(self, document: bytes) -> Any:
        """See `Receiving`."""
        until_s = time.monotonic() + PATIENCE_S
        while not self._free:
            self.rest(0.0)
            if time.monotonic() > until_s:
                raise DeviceFault("no replay ends")
        context = self._free.popleft()
        n_bytes = len(document)
        if self._receives or context.document_starts[1] != n_bytes:
            context.text[:n_bytes] = document
            context.document_starts[:2] = 0, n_bytes
        return _Received(context, n_bytes)

    def submit(self, first: int, documents: Sequence[Any], record: Record) -> None:
        """See `Target`."""
        for number, document in enumerate(documents, first):
            context, n_bytes = document if isinstance(document, _Received) else self.receive(document)
            begin_ns = time.perf_counter_ns()
            context.launch(n_bytes, 1, FLAG_IDS, False)
            end_ns = time.perf_counter_ns()
            self._flying.append(_Flight(context, number, record, end_ns + self._nap_ns))
            counted = self._counted
            counted["documents"] += 1
            counted["launch_ns"] += end_ns - begin_ns

    def rest(self, seconds: float) -> int:
        """See `Driving`."""
        if not self._flying:
            return super().rest(seconds)
        flight = self._flying[0]
        context = flight.context
        if self._wait == NAP:
            self._sleep(flight)
        elif self._wait == EVENT:
            context.block()
        elif not context.poll(LOOKS_AT_A_TIME):
            return 0
        begin_ns = time.perf_counter_ns()
        n_tokens = context.n_tokens()
        if flight.record.sampled(flight.number, 1):
            flight.record.kept[flight.number] = context.ids[:n_tokens].tobytes()
        flight.record.answered(flight.number, 1)
        self._flying.popleft()
        self._free.append(context)
        self._counted["read_ns"] += time.perf_counter_ns() - begin_ns
        return 0

    def counters(self) -> dict[str, float]:
        """See `CountingTarget`."""
        return dict(self._counted)

    def _sleep(self, flight: _Flight) -> None:
        """Until a replay is complete. So long that one nap in five is too short, as the dispatcher's are."""
        counted, poll = self._counted, flight.context.poll
        left_ns, is_first = flight.end_ns - time.perf_counter_ns(), True
        while True:
            if left_ns > 0:
                begin_ns = time.thread_time_ns()
                time.sleep(left_ns * 1e-9)
                counted["nap_ns"] += time.thread_time_ns() - begin_ns
                counted["naps"] += 1
            if poll(1):
                break
            is_first = False
            left_ns = max(int(self._nap_ns * LATE_PART), 10_000)
        step = -EARLY_PART if is_first else 4 * EARLY_PART
        self._nap_ns = max(int(self._nap_ns * (1 + step)), 10_000)


def contexts_of(gpu: Gpu, file: bytes, options: GpuOptions) -> list[ExecutionContext]:
    """Execution contexts of one size."""
    device = gpu.device("", load_tables(file, read_spec(file), None), options)
    (size,) = size_classes(options)
    return [device.context(size) for _ in range(options.contexts_per_class)]


def run_by_turns(targets: Sequence[Any], trials: dict[int, Trial], n_rounds: int) -> list[Row]:
    """Every target at every rate, so many times, by turns."""
    rows: list[Row] = []
    for _ in range(n_rounds):
        for rate, trial in trials.items():
            for target in targets:
                row = trial.run(target, None, offered_per_s=rate)
                counted = row["counters"]
                n = max(counted.get("documents", 0), 1)
                row |= {f"{name}_us": counted.get(f"{name}_ns", 0) / n / 1000 for name in ("launch", "nap", "read")}
                row["naps"] = counted.get("naps", 0) / n
                rows.append(row)
                print(line(row), flush=True)
    return rows


def after_rests(floor: FloorTarget, ours: Any, document: bytes, rests_us: Sequence[int], n_times: int) -> list[Row]:
    """Medians in us by the length of a rest: its CPU, a launch after it, and a call of the dispatcher after it."""
    sharpen_sleep()
    rows: list[Row] = []
    for rest_us in rests_us:
        rest_ns, launch_ns, submit_ns = [], [], []
        for _ in range(n_times):
            received, begin_ns = floor.receive(document), time.thread_time_ns()
            time.sleep(rest_us * 1e-6)
            rest_ns.append(time.thread_time_ns() - begin_ns)
            record, begin_ns = Record(1, n_samples=0), time.perf_counter_ns()
            floor.submit(0, [received], record)
            launch_ns.append(time.perf_counter_ns() - begin_ns)
            record.wait(PATIENCE_S, floor.rest)
            text, record = ours.receive(document), Record(1, n_samples=0)
            time.sleep(rest_us * 1e-6)
            begin_ns = time.perf_counter_ns()
            ours.submit(0, [text], record)
            submit_ns.append(time.perf_counter_ns() - begin_ns)
            del text
            record.wait(PATIENCE_S, ours.rest)
        taken = {"rest_cpu_us": rest_ns, "launch_us": launch_ns, "submit_us": submit_ns}
        rows.append({"rest_us": rest_us} | {name: statistics.median(some) / 1000 for name, some in taken.items()})
        print(line(rows[-1]), flush=True)
    return rows


def medians(rows: Sequence[Row]) -> list[Row]:
    """One row for each target and rate."""
    found: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["offered_per_s"], row["target"]), []).append(row)
    return [
        {"target": target, "offered_per_s": rate}
        | {figure: statistics.median(row[figure] for row in some) for figure in FIGURES}
        for (rate, target), some in sorted(found.items())
    ]


def is_right(rows: Sequence[Row]) -> bool:
    """Whether all was answered and what was compared is right, where texts were encoded."""
    compared = [row for row in rows if row["target"] != "floor, there"]
    return not any(row["unanswered"] for row in rows) and not any(row["wrong"] for row in compared)


def measure(
    data: DeviceData,
    rates: Sequence[int],
    seconds: float,
    n_rounds: int,
    family: str = "llama3_1",
    forms: Sequence[Form] = FORMS,
    make_gpu: MakeGpu | None = None,
    rests_us: Sequence[int] = (),
) -> tuple[list[Row], list[Row]]:
    """Rows of all runs, and of rests. `make_gpu` is for tests."""
    file = data.tokenizer_json(family)
    bench = Bench({name: data.corpus(name).encode() for name in CORPORA}, Reference(file), None, float("inf"))
    loads = {rate: Load(rate, seconds, LONG_BYTES, LONG_BYTES, seed=rate) for rate in rates}
    trials = {rate: bench.trial(load, LONG_SAMPLES) for rate, load in loads.items()}
    service = DispatcherService(file, gpus="0", n_workers=2, driven=True, engine=LOCAL, make_gpu=make_gpu)
    try:
        gpu = (make_gpu or _cuda)(_GRAPH)
        targets: list[Any] = [NothingTarget(), service.target("gpu", receives=True)]
        targets += [FloorTarget(form, contexts_of(gpu, file, form.options)) for form in forms]
        for target in targets:
            warm_up(target, trials[rates[0]].documents[:8], WARM_UP_S)
        rows = run_by_turns(targets, trials, n_rounds)
        return rows, after_rests(targets[2], targets[1], trials[rates[0]].documents[0], rests_us, N_RESTS)
    finally:
        service.close()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rates", default="500,2000")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--forms", type=int, default=len(FORMS), help="how many forms of the floor, the first ones")
    parser.add_argument("--rests", action="store_true", help="also what a rest leaves cold")
    parser.add_argument("--family", default="llama3_1")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rates = [int(rate) for rate in given.rates.split(",")]
    rests_us = RESTS_US if given.rests else ()
    data = DeviceData(given.data)
    forms = FORMS[: max(given.forms, 1)]
    rows, rests = measure(data, rates, given.seconds, given.rounds, given.family, forms, rests_us=rests_us)
    summary = medians(rows)
    for row in summary:
        print(line(row))
    if given.json:
        kept = {"medians": [rounded(row) for row in summary], "rows": [rounded(row) for row in rows]}
        kept |= {"rests": [rounded(row) for row in rests]}
        given.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if is_right(rows) else 1


def _cuda(options: GpuOptions) -> Gpu:
    from gpu_core.device import CudaGpu

    return CudaGpu(options.device)


if __name__ == "__main__":
    sys.exit(main())
