"""The `decode` part of `tests.benchmarks.gpu`: ids to bytes and to texts, beside the reference."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from gpu_core.decoder import Decoder, load_decoder
from gpu_core.device import CudaDevice
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables
from tests.gpu_core.device_data import DeviceData, Ids, Reference, window

Row = dict[str, Any]
N_FIRST = 2


def bench_decode(data: DeviceData, repeats: int) -> list[Row]:
    """Ids in arrays to bytes in pinned memory (`call_us`), and on to one string for each sequence (`text_us`)."""
    file = data.tokenizer_json("llama3_1")
    device = CudaDevice(build_tables(file, read_spec(file)), GpuOptions())
    decoder, reference = load_decoder(file, device), Reference(file)
    books = data.corpus("books").encode()
    shapes = {"1 x 1 KiB": (1, 1024), "1 x 480 KB": (1, 480_000), "1 x 3.8 MB": (1, 3_800_000)}
    shapes |= {"64 x 8 KiB": (64, 8192), "1,000 x 500 B": (1000, 500), "10,000 x 100 B": (10_000, 100)}
    rows: list[Row] = []
    for name, (n, size) in shapes.items():
        texts = [window(books, i * size % (len(books) - size), size) for i in range(n)]
        sequences = reference.ids(texts)
        row: Row = {"input": name, "ids": sum(map(len, sequences)), "bytes": sum(map(len, texts))}
        # Many short sequences cost Python a microsecond each and more.
        row |= _times(decoder, reference, sequences, repeats if n <= 1000 else max(3, repeats // 10))
        rows.append(row)
        print(
            "  ".join(
                f"{key}={value:.1f}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items()
            )
        )
    return rows


def _times(decoder: Decoder, reference: Reference, sequences: list[Ids], repeats: int) -> Row:
    lists, n_ids = [ids.tolist() for ids in sequences], sum(map(len, sequences))
    expected = reference.tokenizer.decode_batch(lists, skip_special_tokens=False)
    decoding = decoder.decode(sequences)
    if [decoding.text(i) for i in range(len(sequences))] != expected:
        raise ValueError("a text differs")
    decoding.release()

    def with_texts() -> None:
        decoding = decoder.decode(sequences)
        for i in range(len(sequences)):
            decoding.text(i)
        decoding.release()

    return {
        "call_us": _median_us(lambda: decoder.decode(sequences).release(), repeats),
        "launch_us": _median_us(lambda: _launch(decoder, n_ids, len(lists)), repeats),
        "text_us": _median_us(with_texts, max(3, repeats // 10)),
        "tokenizers_us": _median_us(lambda: reference.tokenizer.decode_batch(lists, skip_special_tokens=False), 1),
    }


def _launch(decoder: Decoder, n_ids: int, n_sequences: int) -> None:
    """What is left of a call when ids and starts are in pinned memory already, as the last call left them."""
    context = decoder._free[-1]
    context.launch(n_ids, n_sequences, 0)
    while not context.poll(64):
        pass


def _median_us(call: Callable[[], object], repeats: int) -> float:
    """Of several calls after some that do not count."""
    samples = []
    for k in range(repeats + N_FIRST):
        begin = time.perf_counter_ns()
        call()
        if k >= N_FIRST:
            samples.append(time.perf_counter_ns() - begin)
    return statistics.median(samples) / 1000
