"""This project's routes as contenders: the CPU engine behind its guards, and the GPU with the CPU for what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Reference

from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError
from loadtest.bench.contender import Batch, Contender, Ids, Unavailable

OPTIONS = EncodeOptions(add_special_tokens=False)
PROOFS = "proofs"
"""Folder of the proofs of engines: only the first load of a file makes them."""


def cpu(file: bytes, reference: Reference, folder: Path) -> Contender:
    """The CPU route: one document after the other on the calling thread, as a worker of the service does it."""
    tokenizer = load_tokenizer(file, cache_dir=folder / PROOFS)
    return Contender(
        lambda batch: tokenizer.encode(batch.texts, OPTIONS),
        _packed,
        threads="1",
        remembers=True,
        detail=tokenizer.engine,
    )


def gpu(file: bytes, reference: Reference, folder: Path) -> Contender:
    """The GPU route: bytes in host memory to ids in host memory; what the device does not answer goes to the CPU."""
    from gpu_core.encoder import load
    from gpu_core.options import GpuOptions

    normalizer: Any = reference.normalizer
    try:
        encoder = load(file, GpuOptions(), normalizer.normalize_str if normalizer is not None else None)
    except SidetokError as error:
        raise Unavailable(str(error)) from error
    return with_fallback(encoder, load_tokenizer(file, cache_dir=folder / PROOFS))


def with_fallback(encoder: Any, fallback: Tokenizer) -> Contender:
    """An encoder of the GPU core, and the CPU route for the documents that it names."""

    def encode(batch: Batch) -> list[Ids]:
        encoding = encoder.encode(batch.documents)
        named = sorted(encoding.needs_cpu)
        answers = fallback.encode([batch.texts[k] for k in named], OPTIONS) if named else []
        by_cpu = dict(zip(named, _packed(answers), strict=True))
        return [by_cpu[k] if k in by_cpu else encoding.ids(k) for k in range(len(batch.documents))]

    return Contender(encode, list, threads="1", remembers=False, detail="graph replay")


def _packed(documents: list[EncodedDocument]) -> list[Ids]:
    return [np.frombuffer(document.ids, "<u4") for document in documents]
