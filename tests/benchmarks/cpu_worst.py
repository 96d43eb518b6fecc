"""Worst cases of the CPU route: every tokenizer x engine x input of a megabyte, in times of a megabyte of books.

    python -m tests.benchmarks.cpu_worst DATA [--families llama3_1,gpt2] [--engines auto,gigatoken,reference]
                                              [--repeats 3] [--json FILE]

DATA holds tokenizers/*/tokenizer.json.xz and corpora/books.txt. Each engine has a process of its own, where it encodes
through `dispatcher.tokenizer.Tokenizer`, guards and fall-backs included. A figure is the CPU time of the process for
the first call on a text that was never seen. Books are the mean of two megabytes, one before all other inputs, behind
another one that warms up, and one behind them. Ids are compared with the reference; a difference ends the run. Prints
a Markdown table of ratios, medians of the repeats.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu import worst_cases
from tests.benchmarks.gpu_tables import ABSENT, lines_of
from tests.gpu_core.device_data import DeviceData, window

MEGABYTE = 1_000_000
WARM_UP = "books to warm up"
BOOKS = ("books before", "books behind")
LIMIT = 10
"""Times a megabyte of books; what is above stands out in the table."""
Row = dict[str, Any]


def inputs_of(file: bytes, books: bytes) -> dict[str, list[str]]:
    """Documents by the name of the input, as a service gets them: text."""
    from gpu_core.spec import read_spec

    literal = next((t.content.encode() for t in read_spec(file).added_tokens if not t.single_word), b"")
    rest = 3 * MEGABYTE
    several = {"100,000 different documents": [window(books, rest + 10 * k, 10) for k in range(100_000)]}
    batches = {name: [window(books, k * MEGABYTE, MEGABYTE)] for k, name in enumerate((WARM_UP, *BOOKS))}
    batches = batches | worst_cases(literal) | several
    # Behind all others.
    batches[BOOKS[1]] = batches.pop(BOOKS[1])
    return {name: [document.decode(errors="replace") for document in batch] for name, batch in batches.items() if batch}


def names_in(folder: Path) -> list[str]:
    """Every tokenizer there, whether a GPU serves it or not."""
    return sorted(path.parent.name for path in folder.glob("tokenizers/*/tokenizer.json.xz"))


def measure(family: str, engine: str, file: bytes, books: bytes) -> list[Row]:
    """A row for each input, of one engine in this process. Raises `ValueError` when ids differ from the reference's."""
    # Not before: the engines set switches of the process.
    from dispatcher.engines.reference_engine import ReferenceEngine
    from dispatcher.request import EncodeOptions
    from dispatcher.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(file, engine=engine, cache_dir=None)
    options = EncodeOptions(add_special_tokens=False)
    reference = ReferenceEngine(file.decode())
    rows: list[Row] = []
    # As the service does once its models are there.
    gc.collect()
    gc.freeze()
    for name, documents in inputs_of(file, books).items():
        before = tokenizer.counters().documents
        begin = time.process_time_ns()
        results = tokenizer.encode(documents, options)
        took = time.process_time_ns() - begin
        others = {by for by, n in tokenizer.counters().documents.items() if n > before.get(by, 0)} - {tokenizer.engine}
        if [result.ids for result in results] != reference.encode_many(documents):
            raise ValueError(f"{family}, {engine}: ids of {name!r} differ from the reference")
        row = {"family": family, "asked": engine, "engine": tokenizer.engine, "input": name}
        rows.append(row | {"cpu_ms": took / 1e6, "others": sorted(others)})
    return rows


def ratios_of(rows: list[Row]) -> dict[str, float]:
    """From the rows of one process: input -> times of a megabyte of books."""
    took = {row["input"]: row["cpu_ms"] for row in rows if row["input"] != WARM_UP}
    books = statistics.mean(took.pop(name) for name in BOOKS)
    return {name: cpu_ms / books for name, cpu_ms in took.items()}


def table_of(runs: list[list[Row]]) -> list[str]:
    """Medians over the runs of the same family and engine; what is above the limit in bold."""
    by_engine: dict[tuple[str, str], list[dict[str, float]]] = {}
    books: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        key = run[0]["family"], run[0]["engine"]
        by_engine.setdefault(key, []).append(ratios_of(run))
        books.setdefault(key, []).append(statistics.mean(row["cpu_ms"] for row in run if row["input"] in BOOKS))
    names = list(dict.fromkeys(name for ratios in by_engine.values() for name in ratios[0]))
    found = []
    for key, ratios in by_engine.items():
        medians = {name: statistics.median(run[name] for run in ratios) for name in ratios[0]}
        cells = [_cell(medians.get(name)) for name in names]
        found.append([*key, f"{statistics.median(books[key]):.1f}", *cells])
    return lines_of(["tokenizer", "engine", "books, ms", *names], found)


def _cell(ratio: float | None) -> str:
    if ratio is None:
        return ABSENT
    return f"**{ratio:.1f}**" if ratio > LIMIT else f"{ratio:.1f}"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--families", default="")
    parser.add_argument("--engines", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    data = DeviceData(arguments.data)
    books = data.corpus("books").encode()
    runs = []
    for family in arguments.families.split(",") if arguments.families else names_in(arguments.data):
        for engine in arguments.engines.split(","):
            for _ in range(arguments.repeats):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    runs.append(pool.submit(measure, family, engine, data.tokenizer_json(family), books).result())
            print(*table_of(runs[-arguments.repeats :])[-1:], file=sys.stderr, flush=True)
    print(*table_of(runs), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps([row for run in runs for row in run]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
