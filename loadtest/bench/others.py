"""Other tokenizers as contenders, each used the fastest way that its interface offers for a batch of texts."""

from __future__ import annotations

import importlib
import json
import os
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from gpu_core.bpe_file import read_bpe_model
from loadtest.bench.contender import Batch, Contender, Ids, Unavailable, listed

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a ByteLevel pre-tokenizer with its own expression splits by."""


def tokenizers(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """The reference itself, a thread for each document."""
    return Contender(
        lambda batch: reference.encode_batch_fast(batch.texts, add_special_tokens=False),
        lambda answer: listed(encoding.ids for encoding in answer),
        threads="all",
        remembers=True,
        detail=version("tokenizers"),
        is_judge=True,
    )


def gigatoken(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """gigatoken with all cores, without guards."""
    library = _module("gigatoken.gigatoken_rs", "gigatoken")
    options = library.PadTruncate(0)
    try:
        backend = library.load_hf_json(file)
    # Its panics derive from BaseException only.
    except BaseException as error:
        raise _refused(error) from error
    return Contender(
        lambda batch: backend.encode_batch_padded(batch.texts, options, parallel=True),
        _unpadded,
        threads="all",
        remembers=True,
        detail=version("gigatoken"),
    )


def fastokens(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """fastokens with all cores, without guards."""
    library = _module("fastokens._native", "fastokens")
    try:
        tokenizer = library.Tokenizer.from_json_str(file.decode())
    except BaseException as error:
        raise _refused(error) from error

    def ids(answer: Any) -> list[Ids]:
        packed, offsets = answer
        return [np.frombuffer(packed, "<u4")[a:b] for a, b in pairwise(np.frombuffer(offsets, "<u8").tolist())]

    return Contender(
        lambda batch: tokenizer.encode_batch_flat(batch.texts),
        ids,
        threads="all",
        remembers=True,
        detail=version("fastokens"),
    )


def tiktoken(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """tiktoken with a thread for each document; only for files with one split and no holes in the vocabulary."""
    library = _module("tiktoken", "tiktoken")
    model = json.loads(file)
    pattern = split_pattern(model)
    if model.get("normalizer") or pattern is None:
        raise Unavailable("the file has a normalizer, or more than one split")
    entries = read_bpe_model(file).entries
    if sorted(entries.values()) != list(range(len(entries))):
        raise Unavailable("the ids of the vocabulary are not its merge ranks")
    encoding = library.Encoding("contender", pat_str=pattern, mergeable_ranks=entries, special_tokens={})
    n_threads = os.cpu_count() or 1

    def encode(batch: Batch) -> Any:
        if len(batch.texts) == 1:
            return [encoding.encode_ordinary(batch.texts[0])]
        return encoding.encode_ordinary_batch(batch.texts, num_threads=n_threads)

    return Contender(encode, listed, threads="all", remembers=False, detail=version("tiktoken"))


def split_pattern(file: dict[str, Any]) -> str | None:
    """The one expression that a file splits text by; None where there are several steps or none."""
    step = file.get("pre_tokenizer") or {}
    steps = step["pretokenizers"] if step.get("type") == "Sequence" else [step]
    found = [s["pattern"]["Regex"] for s in steps if s.get("type") == "Split" and "Regex" in s["pattern"]]
    own = [GPT2_PATTERN for s in steps if s.get("type") == "ByteLevel" and s.get("use_regex", True)]
    known = all(s.get("type") in ("Split", "ByteLevel") and not s.get("add_prefix_space") for s in steps)
    patterns = found + own
    return patterns[0] if known and len(patterns) == 1 else None


def _module(name: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unavailable(f"{package} is not installed") from error


def _refused(error: BaseException) -> Unavailable:
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    lines = str(error).strip().splitlines()
    return Unavailable(f"it refuses the file: {lines[0][:200] if lines else type(error).__name__}")


def _unpadded(answer: Any) -> list[Ids]:
    rows, lengths = np.asarray(answer[0]), np.asarray(answer[1]).reshape(-1)
    rows = rows.reshape(len(lengths), -1)
    return [row[:n].astype(np.uint32) for row, n in zip(rows, lengths.tolist(), strict=True)]
