"""A whole comparison: every contender on every cell, on one machine in one run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from loadtest.bench import others, ours, toktier
from loadtest.bench.cells import MAX_BATCHES, Cell, bytes_per_token, make_cell
from loadtest.bench.contender import Contender, Ids, Maker, Unavailable
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


def compare(wanted: Wanted, report: Report, keep: Keep = lambda result: None) -> dict[str, Any]:
    """The result as it is written.

    `report` gets a line for each contender that is loaded and each cell that is done, `keep` the result so far.
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
    for name, file in wanted.families.items():
        families[name] = {"contenders": {}, "cells": []}
        _fill(families[name], name, file, wanted, report, lambda: keep(result))
    return result


def _fill(
    family: dict[str, Any], name: str, file: bytes, wanted: Wanted, report: Report, keep: Callable[[], None]
) -> None:
    reference = load_reference(file)
    loaded: dict[str, Contender] = {}
    contenders = family["contenders"]
    for contender_name, maker in wanted.makers.items():
        report(f"{name}: loading {contender_name}")
        try:
            contender = loaded[contender_name] = maker(file, reference)
        except Unavailable as reason:
            contenders[contender_name] = {"available": False, "reason": str(reason)}
        else:
            contenders[contender_name] = {
                "available": True, "threads": contender.threads, "detail": contender.detail,
            }  # fmt: skip
    for corpus, text in wanted.corpora.items():
        ratio = bytes_per_token(reference, text)
        for n_tokens, n_documents in _shapes(wanted):
            cell = make_cell(corpus, text, n_tokens, n_documents, ratio, wanted.max_texts)
            if cell is not None:
                family["cells"].append(_row(file, reference, cell, loaded, wanted))
                report(f"{name}: {corpus}, {n_documents} x {n_tokens} tokens")
                keep()


def _shapes(wanted: Wanted) -> list[tuple[int, int]]:
    """Tokens of a document and documents of a call, each pair once."""
    shapes = [(n_tokens, 1) for n_tokens in wanted.sizes] + [(wanted.document_tokens, n) for n in wanted.batches]
    return list(dict.fromkeys(shapes))


def _row(file: bytes, reference: Tokenizer, cell: Cell, loaded: dict[str, Contender], wanted: Wanted) -> dict[str, Any]:
    expected = _expected(reference, cell)
    results: dict[str, Any] = {}
    for name, contender in loaded.items():
        wrong = 0 if contender.is_judge else n_different(contender, cell, expected)
        if wrong:
            results[name] = {"exact": False, "n_different": wrong}
        else:
            load = _loader(wanted.makers[name], file, None if contender.is_judge else reference)
            results[name] = {"exact": True, **measure(load, contender, cell, wanted.budget)}
    return {
        "corpus": cell.corpus,
        "asked_tokens": cell.n_tokens,
        "n_documents": cell.n_documents,
        "n_batches": len(cell.batches),
        "n_tokens": float(np.median([sum(map(len, batch)) for batch in expected])),
        "n_bytes": float(np.median([batch.n_bytes for batch in cell.batches])),
        "results": results,
    }


def _loader(maker: Maker, file: bytes, reference: Tokenizer | None) -> Callable[[], Contender]:
    """What loads a contender afresh; without a reference, that is loaded afresh, too."""
    return lambda: maker(file, load_reference(file) if reference is None else reference)


def _expected(reference: Tokenizer, cell: Cell) -> list[list[Ids]]:
    """The reference's ids of every batch; all documents are encoded in one call, which takes all CPUs."""
    texts = [text for batch in cell.batches for text in batch.texts]
    found = iter(reference.encode_batch_fast(texts, add_special_tokens=False))
    return [[np.array(next(found).ids, np.uint32) for _ in batch.texts] for batch in cell.batches]
