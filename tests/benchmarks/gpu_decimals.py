"""The `decimals` part of `tests.benchmarks.gpu`: replays that write ids as decimal numbers, beside orjson."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]

from gpu_core.encoder import Encoder, load
from gpu_core.encoding import Lease
from gpu_core.options import GpuOptions
from tests.gpu_core.decimal_checks import wrong_decimals
from tests.gpu_core.device_data import DeviceData, window

Row = dict[str, Any]
SIZES = {"books 16 KiB": 1 << 14, "books 64 KiB": 1 << 16, "books 480 KB": 480_000, "books 3.8 MB": 3_800_000}
N_FIRST = 10
N_WINDOWS = 5


def bench_decimals(data: DeviceData, repeats: int) -> list[Row]:
    """A replay with decimals and one without, by turns: bytes in pinned memory to results there.

    `copy_us`: the text of decimals as bytes of its own; `orjson_us`: what orjson makes of the ids.
    """
    encoder = load(data.tokenizer_json("llama3_1"), GpuOptions(size_classes_bytes=(1 << 14, 1 << 16, 1 << 19, 1 << 22)))
    books = data.corpus("books").encode()
    rows: list[Row] = []
    for name, n_bytes in SIZES.items():
        texts = [window(books, k * 50_000, n_bytes) for k in range(N_WINDOWS)]
        for text in texts:
            if wrong := wrong_decimals(encoder, [text])[1]:
                raise ValueError(wrong[0])
        rows.append({"input": name, **_times(encoder, texts, repeats)})
        print(
            "  ".join(
                f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}"
                for key, value in rows[-1].items()
            ),
            flush=True,
        )
    return rows


def _times(encoder: Encoder, texts: list[bytes], repeats: int) -> Row:
    samples: dict[str, list[int]] = {"call_us": [], "decimals_us": [], "copy_us": [], "orjson_us": []}
    cpu: dict[str, list[int]] = {"cpu_us": [], "decimals_cpu_us": []}
    n_tokens = n_decimals = 0
    for k in range(repeats + N_FIRST):
        text = texts[k % len(texts)]
        lease = encoder.lease(len(text), 1)
        lease.context.text[: len(text)] = text
        lease.context.document_starts[:2] = (0, len(text))
        found = {"call_us": _replay(encoder, lease, len(text), False)}
        found["decimals_us"] = _replay(encoder, lease, len(text), True)
        n_tokens, n_decimals = lease.context.n_tokens(), int(lease.context.document_decimals[1])
        begin = time.perf_counter_ns()
        copy = bytes(lease.context.decimals[: n_decimals - 1])
        copied = time.perf_counter_ns()
        if orjson is not None:
            listed = orjson.dumps(np.asarray(lease.context.ids[:n_tokens]), option=orjson.OPT_SERIALIZE_NUMPY)
            found["orjson_us"] = time.perf_counter_ns() - copied, 0
            if listed[1:-1] != copy:
                raise ValueError("decimals are not what orjson writes")
        found["copy_us"] = copied - begin, 0
        lease.release()
        if k >= N_FIRST:
            for name, (wall_ns, cpu_ns) in found.items():
                samples[name].append(wall_ns)
                if cpu_ns:
                    cpu["cpu_us" if name == "call_us" else "decimals_cpu_us"].append(cpu_ns)
    row: Row = {"tokens": n_tokens, "decimal_bytes": n_decimals}
    row |= {name: statistics.median(values) / 1000 for name, values in samples.items() if values}
    return row | {name: statistics.mean(values) / 1000 for name, values in cpu.items() if values}


def _replay(encoder: Encoder, lease: Lease, n_bytes: int, decimals: bool) -> tuple[int, int]:
    """Wall and CPU time of one."""
    cpu, begin = time.thread_time_ns(), time.perf_counter_ns()
    encoder.replay(lease, n_bytes, 1, decimals=decimals)
    end, cpu_end = time.perf_counter_ns(), time.thread_time_ns()
    return end - begin, cpu_end - cpu
