"""Text to ids on a GPU, beside gigatoken (all cores), tiktoken and the reference, on one machine in one run.

    python -m tests.benchmarks.gpu DATA [--repeats 60] [--part calls,worst] [--json FILE]

A call goes from bytes in pinned memory to ids in pinned memory through the public interface; kernel times are those
between two events around the graph, with text and results on the device. Ids are compared with the reference before
anything is timed. Figures are medians in microseconds; texts rotate over several windows. Calls are timed on the CPU
on which a probe of 1 KiB was the fastest; the probe's figures are among the rows, as part `cpus`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpu_core.encoder import Encoder, load
from gpu_core.encoding import Encoding
from gpu_core.layout import FLAG_IDS
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from gpu_core.transfer import TRANSFERS, Transfer
from tests.benchmarks.cpu_engines import first_calls_ms
from tests.benchmarks.fastest_cpu import FastestCpu
from tests.benchmarks.gpu_decimals import bench_decimals
from tests.benchmarks.gpu_decode import bench_decode
from tests.benchmarks.gpu_peers import Peers
from tests.gpu_core.device_data import DeviceData, Ids, Reference, window

N_WINDOWS = 5
WARM_UP_S = 0.3
"""An idle GPU lowers its clocks, and takes some time to raise them."""
LADDER = (4096, 16384, 1 << 16, 1 << 18, 1 << 19, 1 << 20, 1 << 22, 1 << 25)
FAMILY_LADDER = (4096, 1 << 19, 1 << 20, 1 << 22)
FAMILY_INPUTS = ("books 1 KiB", "books 480 KB", "books 3.8 MB", "code 480 KB", "multilingual 1 MB")
Row = dict[str, Any]
Batch = list[bytes]


def median_us(samples_ns: list[int]) -> float:
    """Median in microseconds."""
    return statistics.median(samples_ns) / 1000


def spread_us(samples_ns: list[int]) -> float:
    """Ninetieth percentile in microseconds."""
    return float(np.percentile(samples_ns, 90)) / 1000


def windows_of(text: bytes, n_bytes: int) -> list[bytes]:
    """The same texts in every run: windows spread over the corpus; two that differ little of most of it."""
    n = N_WINDOWS if 2 * n_bytes < len(text) else 2
    step = max(1, (len(text) - n_bytes) // n)
    return [window(text, k * step, n_bytes) for k in range(n)]


def put(context: Any, batch: Batch) -> None:
    """Write a batch into pinned memory, as whoever receives it would."""
    if len(batch) == 1:
        context.text[: len(batch[0])] = batch[0]
        context.document_starts[:2] = (0, len(batch[0]))
        return
    starts = np.cumsum([0, *map(len, batch)])
    context.text[: starts[-1]] = b"".join(batch)
    context.document_starts[: len(starts)] = starts


def call(encoder: Encoder, batch: Batch) -> tuple[int, int, int]:
    """One call with the text already in pinned memory: nanoseconds in all, in the launch, of this thread's CPU."""
    n_bytes = sum(map(len, batch))
    lease = encoder.lease(n_bytes, len(batch))
    put(lease.context, batch)
    cpu, begin = time.thread_time_ns(), time.perf_counter_ns()
    encoding = encoder.replay(lease, n_bytes, len(batch))
    encoding.ids(0)
    end, cpu_end = time.perf_counter_ns(), time.thread_time_ns()
    return end - begin, encoding.times.launch_ns, cpu_end - cpu


def tries(encoder: Encoder, batch: Batch) -> tuple[bool, int]:
    """Whether a call brings text into normal form, and how many documents it leaves all the same."""
    n_bytes = sum(map(len, batch))
    lease = encoder.lease(n_bytes, len(batch))
    context: Any = lease.context
    put(context, batch)
    encoding = encoder.replay(lease, n_bytes, len(batch))
    return context.in_normal_form, len(encoding.needs_cpu)


@cache
def fastest_cpu(data: DeviceData) -> FastestCpu:
    """Where calls are timed: the host's share of a call varies by CPU, by up to a third."""
    encoder = load(data.tokenizer_json("llama3_1"), GpuOptions(size_classes_bytes=(4096,)))
    text = window(data.corpus("books").encode(), 0, 1024)
    warm_until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_until:
        call(encoder, [text])
    return FastestCpu.probe(lambda: call(encoder, [text]))


def time_calls(cpu: FastestCpu, encoder: Encoder, batches: list[Batch], repeats: int) -> Row:
    """Medians of many calls."""
    with cpu.pinned():
        return _time_calls(encoder, batches, repeats)


def _time_calls(encoder: Encoder, batches: list[Batch], repeats: int) -> Row:
    warm_until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_until:
        call(encoder, batches[0])
    for batch in batches:
        call(encoder, batch)
    samples = [call(encoder, batches[k % len(batches)]) for k in range(repeats)]
    totals, launches, cpu = zip(*samples, strict=True)
    return {
        "call_us": median_us(list(totals)),
        "call_p90_us": spread_us(list(totals)),
        "launch_us": median_us(list(launches)),
        "cpu_us": median_us(list(cpu)),
    }


def time_kernels(encoder: Encoder, batch: Batch, repeats: int, second: bool = False) -> float:
    """Time of `encode` alone, or of both kernels of a second replay, with everything on the device."""
    n_bytes = sum(map(len, batch))
    lease = encoder.lease(n_bytes, len(batch))
    context: Any = lease.context
    put(context, batch)
    time_one = context.time_second if second else context.time_kernels
    samples = [time_one(n_bytes, len(batch), FLAG_IDS) for _ in range(repeats + 5)][5:]
    lease.release()
    return float(statistics.median(samples))


def check_equal(encoder: Encoder, expected: list[list[Ids]], batches: list[Batch]) -> Row:
    """Tokens of the first batch, and documents of all that are for the CPU. Raises when an id differs."""
    n_needs_cpu = 0
    for batch, ids_of_batch in zip(batches, expected, strict=True):
        encoding = encoder.encode(batch)
        n_needs_cpu += len(encoding.needs_cpu)
        for i, ids in enumerate(ids_of_batch):
            if i not in encoding.needs_cpu and not np.array_equal(encoding.ids(i), ids):
                raise ValueError(f"document {i} of {len(batch)} differs")
        encoding.release()
    return {"tokens": sum(map(len, expected[0])), "needs_cpu": n_needs_cpu}


def cases(data: DeviceData) -> dict[str, list[Batch]]:
    """The rows of the table: name -> several batches."""
    books, code, multilingual = (data.corpus(name).encode() for name in ("books", "code", "multilingual"))
    one = {
        "books 1 KiB": (books, 1024),
        "books 16 KiB": (books, 16384),
        "books 480 KB": (books, 480_000),
        "books 1 MB": (books, 1_000_000),
        "books 3.8 MB": (books, 3_800_000),
        "code 480 KB": (code, 480_000),
        "code 3.8 MB": (code, 3_800_000),
        "multilingual 1 MB": (multilingual, 1_000_000),
    }
    found = {name: [[text] for text in windows_of(*case)] for name, case in one.items()}
    found["64 x 8 KiB"] = [[window(books, (64 * k + i) * 8192, 8192) for i in range(64)] for k in range(N_WINDOWS)]
    found["32 MB in 8"] = [[window(books, 100 * k, 4_000_000) for k in range(8)]]
    return found


def worst_cases(literal: bytes) -> dict[str, Batch]:
    """Inputs of 1 MB that bring out the worst, whatever their result."""
    rng = np.random.default_rng(7)
    million = 1_000_000
    letters = rng.integers(97, 123, million, dtype=np.uint8)
    return {
        "one letter": [b"a" * million],
        "random letters": [letters.tobytes()],
        "newline and blank": [b"\n " * (million // 2)],
        "line ends": [b"\n" * million],
        "words of 500 letters": [b"\n".join(letters[k : k + 500].tobytes() for k in range(0, million - 2_000, 500))],
        "digits": [rng.integers(48, 58, million, dtype=np.uint8).tobytes()],
        "U+0338 after every character": [b"x\xcc\xb8" * (million // 3)],
        "added tokens only": [literal * (million // max(1, len(literal)))] if literal else [],
        "invalid UTF-8": [rng.integers(0, 256, million, dtype=np.uint8).tobytes()],
        "100,000 documents": [b"ten bytes!"] * 100_000,
    }


def bench_calls(family: str, data: DeviceData, repeats: int) -> list[Row]:
    """The table of calls, beside the others."""
    file = data.tokenizer_json(family)
    encoder = load(file, GpuOptions(size_classes_bytes=LADDER, contexts_per_class=1))
    options = GpuOptions(size_classes_bytes=LADDER, contexts_per_class=1, wait="spin")
    spin = Encoder(encoder.spec, encoder.device, options, cuts=encoder.cuts)
    peers = Peers(file)
    rows = []
    for name, batches in cases(data).items():
        others, expected = peers.times(batches, repeats)
        row: Row = {"family": family, "input": name, "bytes": sum(map(len, batches[0]))}
        row |= check_equal(encoder, expected, batches)
        row |= time_calls(fastest_cpu(data), encoder, batches, repeats)
        row["spin_us"] = time_calls(fastest_cpu(data), spin, batches, repeats)["call_us"]
        row["kernels_us"] = time_kernels(encoder, batches[0], repeats)
        rows.append(row | others)
        print(_line(rows[-1]), flush=True)
    return rows


def bench_families(data: DeviceData, repeats: int) -> list[Row]:
    """Every tokenizer that the device serves, on a few inputs; `against_llama3_1`: times as long a call takes.

    `second_us` where text is not in normal form: the kernels of the second replay, which the call takes, too.
    `encode_us` then, and where a replay leaves documents (`left`): `encode`, with its copies and its other tries.
    """
    rows: list[Row] = []
    standard: dict[str, float] = {}
    inputs = {name: batches[:2] for name, batches in cases(data).items() if name in FAMILY_INPUTS}
    for family in sorted(data.families(), key=lambda family: family != "llama3_1"):
        file = data.tokenizer_json(family)
        encoder = load(file, GpuOptions(size_classes_bytes=FAMILY_LADDER, contexts_per_class=1))
        all_batches = [batch for batches in inputs.values() for batch in batches]
        expected = iter(Reference(file).ids_of_batches(all_batches))
        for name, batches in inputs.items():
            row: Row = {"family": family, "input": name}
            row |= check_equal(encoder, [next(expected) for _ in batches], batches)
            row |= time_calls(fastest_cpu(data), encoder, batches, repeats)
            row["kernels_us"] = time_kernels(encoder, batches[0], 20)
            of_batches = [tries(encoder, batch) for batch in batches]
            if any(in_normal_form for in_normal_form, _left in of_batches):
                row["second_us"] = time_kernels(encoder, batches[0], 20, second=True)
            row["left"] = sum(n_left for _form, n_left in of_batches)
            if "second_us" in row or row["left"]:
                with fastest_cpu(data).pinned():
                    samples = [t for batch in batches for t in _timed_encode(encoder, batch, repeats // 2)]
                row["encode_us"] = median_us(samples)
            row["against_llama3_1"] = row["call_us"] / standard.setdefault(name, row["call_us"])
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def bench_waits(data: DeviceData, repeats: int) -> list[Row]:
    """The three ways to wait: wall time and CPU time of a call."""
    file = data.tokenizer_json("llama3_1")
    rows, texts = [], cases(data)
    for wait in ("adaptive", "spin", "block"):
        encoder = load(file, GpuOptions(size_classes_bytes=(16384, 1 << 19, 1 << 22), wait=wait))
        for name in ("books 16 KiB", "books 480 KB", "books 3.8 MB"):
            row: Row = {"wait": wait, "input": name} | time_calls(fastest_cpu(data), encoder, texts[name], 5 * repeats)
            rows.append(row)
            print(_line(row), flush=True)
    return rows


def bench_transfers(data: DeviceData, repeats: int) -> list[Row]:
    """Every way in and out at several sizes, as a graph and kernel by kernel, without the encoder around it."""
    rows = []
    books = data.corpus("books").encode()
    for eager in (False, True):
        encoder = load(data.tokenizer_json("llama3_1"), GpuOptions(contexts_per_class=1, eager=eager))
        for n_bytes in (1024, 4096, 16384, 32768, 65536, 262_144, 480_000, 1_000_000, 3_800_000):
            row: Row = {"input": f"books {n_bytes}", "eager": eager}
            lease = encoder.lease(n_bytes, 1)
            for transfer in TRANSFERS:
                samples = [_replay_as(lease.context, transfer, books, n_bytes, k) for k in range(repeats + 20)]
                row["_".join(transfer)] = median_us(samples[20:])
            rows.append(row)
            print(_line(row), flush=True)
            lease.release()
    return rows


def _replay_as(context: Any, transfer: Transfer, text: bytes, n_bytes: int, k: int) -> int:
    piece = window(text, k % N_WINDOWS * 50_000, n_bytes)
    context.text[: len(piece)] = piece
    context.document_starts[:2] = (0, len(piece))
    begin = time.perf_counter_ns()
    context.launch_as(transfer, len(piece), 1, FLAG_IDS)
    while not context.poll(64):
        pass
    return time.perf_counter_ns() - begin


def bench_worst(family: str, data: DeviceData, repeats: int) -> list[Row]:
    """Worst cases beside a megabyte of books: a replay, a call with second tries, and every CPU engine.

    `needs_cpu` are the documents that the device still hands over, to the engines whose times stand beside.
    """
    file = data.tokenizer_json(family)
    encoder = load(file, GpuOptions(size_classes_bytes=(1 << 20, 1 << 22)))
    reference = Reference(file)
    literal = next((t.content.encode() for t in read_spec(file).added_tokens if not t.single_word), b"")
    rows = []
    batches = {"books": [window(data.corpus("books").encode(), 0, 1_000_000)]} | worst_cases(literal)
    cpu = first_calls_ms(file, batches)
    for name, batch in batches.items():
        encoding = encoder.encode(batch)
        _check_answers(encoding, reference, batch)
        row: Row = {
            "family": family,
            "input": name,
            "needs_cpu": len(encoding.needs_cpu),
            "why": sorted(set(encoding.needs_cpu.values())),
        }
        del encoding
        row |= time_calls(fastest_cpu(data), encoder, [batch], max(10, repeats // 3))
        row["kernels_us"] = time_kernels(encoder, batch, 10)
        with fastest_cpu(data).pinned():
            row["encode_us"] = median_us(_timed_encode(encoder, batch, repeats // 2))
            if len(batch) > 1:
                row["packed_us"] = median_us(_timed_packed(encoder, batch, repeats // 2))
        row |= {f"{engine}_ms": times[name] for engine, times in cpu.items()}
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def _check_answers(encoding: Encoding, reference: Reference, batch: Batch) -> None:
    answered = [i for i in range(len(batch)) if i not in encoding.needs_cpu]
    for i, ids in zip(answered, reference.ids([batch[i] for i in answered]), strict=True):
        if not np.array_equal(encoding.ids(i), ids):
            raise ValueError(f"document {i} of {len(batch)} differs")


def _timed_encode(encoder: Encoder, batch: Batch, repeats: int) -> list[int]:
    """`Encoder.encode` after half as many calls that are not counted: waits are learned by then."""
    samples = []
    for _ in range(repeats // 2 + repeats):
        begin = time.perf_counter_ns()
        encoder.encode(batch).release()
        samples.append(time.perf_counter_ns() - begin)
    return samples[repeats // 2 :]


def _timed_packed(encoder: Encoder, batch: Batch, repeats: int) -> list[int]:
    """The same for documents that lie in one buffer."""
    text, starts = b"".join(batch), np.cumsum([0, *map(len, batch)]).astype(np.uint32)
    samples = []
    for _ in range(repeats // 2 + repeats):
        begin = time.perf_counter_ns()
        encoder.encode_packed(text, starts).release()
        samples.append(time.perf_counter_ns() - begin)
    return samples[repeats // 2 :]


def _cpu_rows(cpu: FastestCpu) -> list[Row]:
    rows: list[Row] = [{"cpu": number, "books_1_kib_us": ns / 1000} for number, ns in cpu.medians_ns.items()]
    for row in rows:
        print(_line(row), flush=True)
    return rows


def _line(row: Row) -> str:
    return "  ".join(
        f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--part", default="transfers,calls,waits,worst,decode,decimals,families")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data, repeats = DeviceData(arguments.data), arguments.repeats
    parts: dict[str, Callable[[], list[Row]]] = {
        "transfers": lambda: bench_transfers(data, repeats),
        "calls": lambda: bench_calls("llama3_1", data, repeats),
        "waits": lambda: bench_waits(data, repeats),
        "worst": lambda: [
            row
            for family in ("llama3_1", "gemma3")
            if family in data.families()
            for row in bench_worst(family, data, repeats)
        ],
        "decode": lambda: bench_decode(data, repeats),
        "decimals": lambda: bench_decimals(data, repeats),
        "families": lambda: bench_families(data, repeats),
    }
    rows: dict[str, list[Row]] = {"cpus": _cpu_rows(fastest_cpu(data))}
    for part in arguments.part.split(","):
        print(f"== {part}", flush=True)
        began = time.monotonic()
        rows[part] = parts[part]()
        print(f"== {part} took {time.monotonic() - began:.0f} s", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
