"""What the engine process costs beside a replay in this process: time and CPU of one round trip, and overlap.

    python -m tests.benchmarks.engine_link DATA [--repeats 2000] [--family llama3_1] [--other qwen3] [--json FILE]

A round trip begins with the text in the arena and ends with the ids there: `launch` to the return of `wait`. In this
process it is `Encoder.replay`. Ids are compared with the reference before anything is timed. Figures are medians in
microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from dispatcher.gpu.link import Completion, Slot
from dispatcher.gpu.messages import Loaded
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.process_link import ProcessLink
from dispatcher.gpu.table_builder import write_tables
from gpu_core.encoder import load
from gpu_core.layout import FLAG_IDS
from gpu_core.spec import read_spec
from gpu_core.tables import load_tables
from tests.benchmarks.gpu import WARM_UP_S, call, median_us, windows_of
from tests.gpu_core.device_data import DeviceData, Reference, window

Batch = list[bytes]
Row = dict[str, Any]
LIMIT_S = 30.0


class Engine:
    """One engine process with its tokenizers."""

    def __init__(self, options: GpuRouteOptions) -> None:
        self.link = ProcessLink(options.encoder_options(0))
        self.link.start()
        report = self.link.next_report()
        print(f"engine: {report}", flush=True)
        if self.link.facts is None:
            raise SystemExit(f"no engine: {self.link.lost_reason}")

    def load(self, key: str, fd: int) -> None:
        """Load a tokenizer from a file of its tables."""
        begin = time.perf_counter()
        self.link.load(key, fd)
        sent = time.perf_counter()
        report = self.link.next_report()
        if not isinstance(report, Loaded):
            raise SystemExit(f"not loaded: {report}")
        total_ms, sent_ms = 1000 * (time.perf_counter() - begin), 1000 * (sent - begin)
        print(f"loaded: {report.took_ms} ms in the engine, {sent_ms:.0f} ms for the arena, {total_ms:.0f} ms in all")
        print(f"facts: {self.link.facts}", flush=True)

    def fitting(self, key: str, n_bytes: int) -> list[Slot]:
        """Slots of the smallest class that holds so much."""
        slots = [slot for slot in self.link.slots(key) if slot.size.capacity >= n_bytes]
        return [slot for slot in slots if slot.size == slots[0].size]

    def wait(self, n: int) -> list[Completion]:
        """The next completions."""
        found: list[Completion] = []
        while len(found) < n:
            found += self.link.wait(LIMIT_S)
        return found

    def round_trip(self, slot: Slot, batch: Batch) -> tuple[int, int, Completion]:
        """Nanoseconds of one, CPU nanoseconds of this thread in it, and what came back."""
        n_bytes = put(slot, batch)
        cpu, begin = time.thread_time_ns(), time.perf_counter_ns()
        self.link.launch(slot, n_bytes, len(batch), FLAG_IDS)
        (completion,) = self.link.wait(LIMIT_S)
        end, cpu_end = time.perf_counter_ns(), time.thread_time_ns()
        return end - begin, cpu_end - cpu, completion


def tables_of(data: bytes) -> tuple[str, int]:
    """Key of a tokenizer, and a file of its tables."""
    spec = read_spec(data)
    fd = os.memfd_create("tables")
    write_tables(fd, load_tables(data, spec, None))
    return spec.digest, fd


def put(slot: Slot, batch: Batch) -> int:
    """Write a batch into a slot; its bytes."""
    ends = list(accumulate(map(len, batch), initial=0))
    slot.text[: ends[-1]] = b"".join(batch)
    slot.document_starts[: len(ends)] = ends
    return ends[-1]


def warm(step: Callable[[], Any]) -> None:
    """An idle GPU lowers its clocks, and takes some time to raise them."""
    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        step()


def check(engine: Engine, key: str, reference: Reference, batches: list[Batch]) -> None:
    """Raises when an id differs."""
    for batch, expected in zip(batches, reference.ids_of_batches(batches), strict=True):
        slot = engine.fitting(key, sum(map(len, batch)))[0]
        _ns, _cpu, completion = engine.round_trip(slot, batch)
        for i, ids in enumerate(expected):
            got = slot.ids[slot.document_tokens[i] : slot.document_tokens[i + 1]]
            if i not in completion.needs_cpu and not np.array_equal(got, ids):
                raise ValueError(f"document {i} of {len(batch)} differs")


def time_round_trips(engine: Engine, key: str, batches: list[Batch], repeats: int) -> Row:
    """One replay at a time."""
    slots = engine.fitting(key, max(sum(map(len, batch)) for batch in batches))
    warm(lambda: engine.round_trip(slots[0], batches[0]))
    before = engine.link.cpu_ns()
    samples = [engine.round_trip(slots[k % len(slots)], batches[k % len(batches)]) for k in range(repeats)]
    engine_cpu_ns = engine.link.cpu_ns() - before
    totals, cpu, completions = zip(*samples, strict=True)
    return {
        "link_us": median_us(list(totals)),
        "link_p90_us": float(np.percentile(totals, 90)) / 1000,
        "link_p99_us": float(np.percentile(totals, 99)) / 1000,
        "replay_us": median_us([completion.replay_ns for completion in completions]),
        "frontend_cpu_us": statistics.mean(cpu) / 1000,
        "engine_cpu_us": engine_cpu_ns / repeats / 1000,
        "engine_says_cpu_us": statistics.mean(completion.engine_cpu_ns for completion in completions) / 1000,
    }


def time_in_flight(engine: Engine, key: str, batches: list[Batch], n_in_flight: int, repeats: int) -> Row:
    """With so many replays under way all the time and the text in place: time between completions, CPU of each."""
    slots = engine.fitting(key, max(sum(map(len, batch)) for batch in batches))[:n_in_flight]
    sizes = {slot.number: put(slot, batches[k % len(batches)]) for k, slot in enumerate(slots)}
    n_documents = len(batches[0])
    for slot in slots:
        engine.link.launch(slot, sizes[slot.number], n_documents, FLAG_IDS)
    begin, cpu, engine_cpu, n_done = time.perf_counter_ns(), time.thread_time_ns(), engine.link.cpu_ns(), 0
    while n_done < repeats:
        for completion in engine.link.wait(LIMIT_S):
            n_done += 1
            engine.link.launch(completion.slot, sizes[completion.slot.number], n_documents, FLAG_IDS)
    took_ns, cpu_ns = time.perf_counter_ns() - begin, time.thread_time_ns() - cpu
    engine_cpu_ns = engine.link.cpu_ns() - engine_cpu
    engine.wait(len(slots))
    times = {"each": took_ns, "frontend_cpu": cpu_ns, "engine_cpu": engine_cpu_ns}
    return {f"{name}_{n_in_flight}_us": ns / n_done / 1000 for name, ns in times.items()}


def time_beside(engine: Engine, key: str, large: Batch, small: Batch, repeats: int) -> Row:
    """Round trip of a small replay that is launched behind a large one."""
    large_slot = engine.fitting(key, sum(map(len, large)))[0]
    small_slot = engine.fitting(key, sum(map(len, small)))[0]
    n_large, n_small = put(large_slot, large), put(small_slot, small)
    small_ns: list[int] = []
    large_ns: list[int] = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        engine.link.launch(large_slot, n_large, len(large), FLAG_IDS)
        second = time.perf_counter_ns()
        engine.link.launch(small_slot, n_small, len(small), FLAG_IDS)
        for _n in range(2):
            for completion in engine.link.wait(LIMIT_S):
                now = time.perf_counter_ns()
                is_small = completion.slot is small_slot
                (small_ns if is_small else large_ns).append(now - (second if is_small else begin))
            if len(small_ns) == len(large_ns):
                break
    return {"small_us": median_us(small_ns), "large_us": median_us(large_ns)}


def time_during_load(engine: Engine, key: str, batch: Batch, other: tuple[str, int]) -> Row:
    """Round trips while another tokenizer is loaded: the slow ones in ms, and when they ended."""
    slot = engine.fitting(key, sum(map(len, batch)))[0]
    loading = threading.Thread(target=engine.load, args=other)
    samples: list[int] = []
    slow: list[str] = []
    begin = time.perf_counter()
    loading.start()
    while loading.is_alive():
        samples.append(engine.round_trip(slot, batch)[0])
        if samples[-1] > 1_000_000:
            slow.append(f"{samples[-1] / 1e6:.1f} at {1000 * (time.perf_counter() - begin):.0f}")
    loading.join()
    return {
        "n": len(samples),
        "median_us": median_us(samples),
        "p99_us": float(np.percentile(samples, 99)) / 1000,
        "longest_ms": max(samples) / 1e6,
        "over_1_ms": slow,
    }


def time_start(key: str, fd: int) -> Row:
    """Until a new engine can serve a tokenizer whose kernels were compiled before."""
    begin = time.perf_counter()
    engine = Engine(GpuRouteOptions())
    up = time.perf_counter()
    engine.load(key, fd)
    end = time.perf_counter()
    engine.link.close()
    return {"device_s": up - begin, "tokenizer_s": end - up, "close_s": time.perf_counter() - end}


def run(data: DeviceData, family: str, other: str, repeats: int) -> dict[str, Any]:
    """All measurements."""
    file = data.tokenizer_json(family)
    books = data.corpus("books").encode()
    cases: dict[str, list[Batch]] = {
        "1 KiB": [[text] for text in windows_of(books, 1024)],
        "16 KiB": [[text] for text in windows_of(books, 16384)],
        "480 KB": [[text] for text in windows_of(books, 480_000)],
        "16 x 4 KiB": [[window(books, (16 * k + i) * 4096, 4096) for i in range(16)] for k in range(5)],
    }
    (key, fd), other_tables = tables_of(file), tables_of(data.tokenizer_json(other))
    engine = Engine(GpuRouteOptions())
    engine.load(key, fd)
    reference = Reference(file)
    rows: dict[str, Row] = {}
    for name, batches in cases.items():
        check(engine, key, reference, batches)
        rows[name] = time_round_trips(engine, key, batches, repeats)
        for n in (1, 2, 3):
            rows[name] |= time_in_flight(engine, key, batches, n, repeats)
        print(name, _line(rows[name]), flush=True)
    large = [window(books, 0, 4_000_000)]
    rows["1 KiB behind 4 MB"] = time_beside(engine, key, large, cases["1 KiB"][0], repeats // 10)
    rows["1 KiB behind 480 KB"] = time_beside(engine, key, cases["480 KB"][0], cases["1 KiB"][0], repeats // 10)
    rows["16 KiB while a tokenizer is loaded"] = time_during_load(engine, key, cases["16 KiB"][0], other_tables)
    for name in list(rows)[-3:]:
        print(name, _line(rows[name]), flush=True)
    engine.link.close()
    rows["second start"] = time_start(key, fd)
    print("second start", _line(rows["second start"]), flush=True)
    encoder = load(file, GpuRouteOptions().encoder_options(0))
    for name, batches in cases.items():
        warm(partial(call, encoder, batches[0]))
        samples = [call(encoder, batches[k % len(batches)]) for k in range(repeats)]
        totals, _launches, cpu = zip(*samples, strict=True)
        rows[name] |= {"in_process_us": median_us(list(totals)), "in_process_cpu_us": statistics.mean(cpu) / 1000}
        rows[name]["hop_us"] = rows[name]["link_us"] - rows[name]["in_process_us"]
        print(name, _line({key: rows[name][key] for key in ("in_process_us", "in_process_cpu_us", "hop_us")}))
    return rows


def _line(row: Row) -> str:
    return "  ".join(f"{k}={v:.1f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--family", default="llama3_1")
    parser.add_argument("--other", default="qwen3")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = run(DeviceData(arguments.data), arguments.family, arguments.other, arguments.repeats)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
