"""A whole comparison: every contender on every cell, on one machine in one run.

Each contender is loaded once for a family, in a process of its own that dies with it. One that remembers what it has
seen is checked and timed on each cell in copies of that process, which have seen nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from loadtest.bench import others, ours, toktier
from loadtest.bench.cells import MAX_BATCHES, Cell, bytes_per_token, make_cell
from loadtest.bench.contender import Contender, Ids, Maker, Unavailable
from loadtest.bench.copies import Place, in_copy, in_place
from loadtest.bench.timing import Budget, measure, n_different
from loadtest.machine import load_average, machine_facts, versions
from loadtest.reference import load_reference

FORMAT = "sidetok-bench/1"
MAKERS: dict[str, Maker] = {
    "sidetok gpu": ours.gpu,
    "sidetok cpu": ours.cpu,
    "gigatoken": others.gigatoken,
    "fastokens": others.fastokens,
    "tiktoken": others.tiktoken,
    "tokenizers": others.tokenizers,
    "toktier cpu": toktier.cpu,
    "toktier gpu": toktier.gpu,
}
Report = Callable[[str], None]
Keep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to compare."""

    families: dict[str, bytes]
    """Bytes of a tokenizer.json by name."""
    corpora: dict[str, bytes]
    origin: str
    sizes: list[int]
    """Tokens of a single document."""
    batches: list[int]
    """Documents in a batch, each of `document_tokens`."""
    document_tokens: int
    makers: dict[str, Maker]
    budget: Budget
    max_texts: int = MAX_BATCHES
    """Different texts of each cell."""


def compare(wanted: Wanted, report: Report, keep: Keep = lambda result: None, place: Place = in_copy) -> dict[str, Any]:
    """The result as it is written.

    `report` gets a line for each contender that is loaded and each cell that it is done with, `keep` the result so far
    after each contender. `place` is where contenders are loaded and timed.
    """
    facts = {
        "format": FORMAT,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine_facts(),
        "load_average_before": load_average(),
        "versions": versions(),
        "texts": {"origin": wanted.origin, "bytes": {name: len(text) for name, text in wanted.corpora.items()}},
        "sizes": wanted.sizes,
        "batches": wanted.batches,
        "document_tokens": wanted.document_tokens,
    }
    families: dict[str, Any] = {}
    result = {**facts, "families": families}
    # It is removed by the process that made it; those of the contenders just end.
    with tempfile.TemporaryDirectory(prefix="sidetok-bench-") as folder:
        for name, file in wanted.families.items():
            trial = _trial(name, file, wanted, report, place, Path(folder))
            families[name] = {"contenders": {}, "cells": [_facts(cell, right) for cell, right in trial.cells]}
            for contender, maker in wanted.makers.items():
                _add(families[name], contender, maker, trial)
                keep(result)
    return result


@dataclass(frozen=True, slots=True)
class _Trial:
    """What the contenders of one family are tried on."""

    name: str
    file: bytes
    cells: list[tuple[Cell, list[list[Ids]]]]
    """With the reference's ids."""
    budget: Budget
    report: Report
    place: Place
    folder: Path
    """For what contenders keep in files."""


def _trial(name: str, file: bytes, wanted: Wanted, report: Report, place: Place, folder: Path) -> _Trial:
    reference = load_reference(file)
    found = []
    for corpus, text in wanted.corpora.items():
        ratio = bytes_per_token(reference, text)
        for n_tokens, n_documents in _shapes(wanted):
            found.append(make_cell(corpus, text, n_tokens, n_documents, ratio, wanted.max_texts))
    cells = [cell for cell in found if cell is not None]
    report(f"{name}: the reference's ids")
    # In a copy, too: it starts threads.
    expected = place(lambda: _expected(reference, cells))
    return _Trial(name, file, list(zip(cells, expected, strict=True)), wanted.budget, report, place, folder)


def _facts(cell: Cell, expected: list[list[Ids]]) -> dict[str, Any]:
    return {
        "corpus": cell.corpus,
        "asked_tokens": cell.n_tokens,
        "n_documents": cell.n_documents,
        "n_batches": len(cell.batches),
        "n_tokens": float(np.median([sum(map(len, batch)) for batch in expected])),
        "n_bytes": float(np.median([batch.n_bytes for batch in cell.batches])),
        "results": {},
    }


def _add(family: dict[str, Any], name: str, maker: Maker, trial: _Trial) -> None:
    """Put a contender and what it did on each cell into the result of a family."""
    trial.report(f"{trial.name}: loading {name}")
    try:
        facts, rows = trial.place(lambda: _try(name, maker, trial))
    except Unavailable as reason:
        facts, rows = {"available": False, "reason": str(reason)}, []
    family["contenders"][name] = facts
    for cell, row in zip(family["cells"], rows, strict=False):
        cell["results"][name] = row


def _try(name: str, maker: Maker, trial: _Trial) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A contender's facts and its rows, one for each cell. Raises `Unavailable`."""
    contender = maker(trial.file, load_reference(trial.file), trial.folder)
    rows = []
    for cell, right in trial.cells:
        rows.append(_row(contender, cell, right, trial))
        trial.report(f"{trial.name}: {name}, {cell.corpus}, {cell.n_documents} x {cell.n_tokens} tokens")
    return {"available": True, "threads": contender.threads, "detail": contender.detail}, rows


def _row(contender: Contender, cell: Cell, expected: list[list[Ids]], trial: _Trial) -> dict[str, Any]:
    place = trial.place if contender.remembers else in_place
    wrong = 0 if contender.is_judge else place(lambda: n_different(contender, cell, expected))
    if wrong:
        return {"exact": False, "n_different": wrong}
    return {"exact": True, **place(lambda: measure(contender, cell, trial.budget))}


def _shapes(wanted: Wanted) -> list[tuple[int, int]]:
    """Tokens of a document and documents of a call, each pair once."""
    shapes = [(n_tokens, 1) for n_tokens in wanted.sizes] + [(wanted.document_tokens, n) for n in wanted.batches]
    return list(dict.fromkeys(shapes))


def _expected(reference: Tokenizer, cells: list[Cell]) -> list[list[list[Ids]]]:
    """The reference's ids of every batch of every cell; all documents are encoded in one call, which takes all CPUs."""
    texts = [text for cell in cells for batch in cell.batches for text in batch.texts]
    found = iter(reference.encode_batch_fast(texts, add_special_tokens=False))
    return [[[np.array(next(found).ids, np.uint32) for _ in batch.texts] for batch in cell.batches] for cell in cells]
