"""Other tokenizers on the machine of `tests.benchmarks.gpu`: the reference, gigatoken (all cores) and tiktoken."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_core.bpe_file import read_bpe_model
from tests.gpu_core.device_data import Ids, Reference

REFERENCE = "tokenizers"
SLOW_NS = 500_000_000
"""What takes longer runs twice at most, the reference once on each text, because its ids are needed."""
Batch = list[bytes]


class Peers:
    """The other tokenizers, each as a function from a batch to its answer."""

    def __init__(self, file: bytes) -> None:
        reference = Reference(file).tokenizer
        self.run: dict[str, Callable[[list[str]], Any]] = {
            REFERENCE: lambda texts: reference.encode_batch_fast(texts, add_special_tokens=False)
        }
        self._add_gigatoken(file)
        self._add_tiktoken(file)
        for run in self.run.values():
            # The first call of a process starts threads and fills tables, which takes up to half a second.
            run(["Once upon a time, there was a tokenizer.", "It was warm."])

    def times(self, batches: list[Batch], repeats: int) -> tuple[dict[str, Any], list[list[Ids]]]:
        """Medians of each peer whose ids are right, and the reference's ids.

        `NAME_us`: of warm calls, as many as half a second holds; `NAME_new_us`: of the first call on each text.
        """
        texts = [[document.decode() for document in batch] for batch in batches]
        expected: list[list[Ids]] = []
        row: dict[str, Any] = {}
        for name, run in self.run.items():
            firsts, answers = [], []
            for text in texts:
                took, answer = _timed(run, text)
                firsts.append(took)
                answers.append(_ids_of(name, answer))
                if name != REFERENCE and took > SLOW_NS and len(firsts) == 2:
                    break
            expected = expected or answers
            if not _are_equal(answers, expected[: len(answers)]):
                row[f"{name}_us"] = None
                continue
            n_warm = min(repeats, SLOW_NS // max(firsts))
            warm = [_timed(run, texts[k % len(texts)])[0] for k in range(n_warm)]
            row[f"{name}_new_us"] = statistics.median(firsts) / 1000
            row[f"{name}_us"] = statistics.median(warm or firsts) / 1000
        return row, expected

    def _add_gigatoken(self, file: bytes) -> None:
        try:
            from gigatoken.gigatoken_rs import PadTruncate, load_hf_json
        except ImportError:
            return
        backend, options = load_hf_json(file), PadTruncate(0)
        self.run["gigatoken"] = lambda texts: backend.encode_batch_padded(texts, options, parallel=True)

    def _add_tiktoken(self, file: bytes) -> None:
        if importlib.util.find_spec("tiktoken") is None:
            return
        tiktoken = importlib.import_module("tiktoken")
        pattern = next(
            (step["pattern"]["Regex"] for step in _splits(json.loads(file)) if "Regex" in step["pattern"]), None
        )
        if pattern is None:
            return
        entries = read_bpe_model(file).entries
        if sorted(entries.values()) != list(range(len(entries))):
            return
        encoding = tiktoken.Encoding("peer", pat_str=pattern, mergeable_ranks=entries, special_tokens={})
        self.run["tiktoken"] = lambda texts: encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count() or 1)


def _splits(file: dict[str, Any]) -> list[dict[str, Any]]:
    step = file.get("pre_tokenizer") or {}
    return [child for child in step.get("pretokenizers", [step]) if child.get("type") == "Split"]


def _ids_of(name: str, answer: Any) -> list[Ids]:
    if name == REFERENCE:
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in answer]
    if name == "gigatoken":
        rows, lengths = np.asarray(answer[0]), np.asarray(answer[1]).tolist()
        if len(lengths) == 1:
            return [rows.reshape(-1)]
        return [row[:n] for row, n in zip(rows, lengths, strict=True)]
    return [np.array(ids, dtype=np.uint32) for ids in answer]


def _are_equal(answers: list[list[Ids]], expected: list[list[Ids]]) -> bool:
    pairs = [pair for two in zip(answers, expected, strict=True) for pair in zip(*two, strict=True)]
    return all(np.array_equal(got, ids) for got, ids in pairs)


def _timed(run: Callable[[list[str]], Any], texts: list[str]) -> tuple[int, Any]:
    begin = time.perf_counter_ns()
    answer = run(texts)
    return time.perf_counter_ns() - begin, answer
