"""BPE over characters: documents with components beyond the limit are answered through pieces, or by the CPU."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from gpu_core.bridge_cut import cuts_of
from gpu_core.character_bpe import BLANK
from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import FLAG_IDS, FLAG_TOKEN_STARTS
from gpu_core.long_runs import long_runs_of
from gpu_core.options import GpuOptions
from gpu_core.shim import HostPipeline, compiler
from gpu_core.shim.joining import HostJoin
from tests.data import FULL
from tests.gpu_core.test_bridge import bench, tables_of
from tests.gpu_core.test_bridge_kernel import FAMILIES

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def encoder_of(family: str, shim_cache: Path) -> Encoder:
    """An encoder over the kernels on the host, one document or piece at a time."""
    pipelines = [HostPipeline(tables_of(family), shim_cache, capacity) for capacity in (800, 8 << 10)]

    def encode(document: bytes) -> list[tuple[int, int]] | int:
        one = next(pipeline for pipeline in pipelines if len(document) <= pipeline.capacity)
        result = one.encode([document], flags=FLAG_IDS | FLAG_TOKEN_STARTS)
        return result.reasons[0] or list(zip(result.ids.tolist(), result.token_starts.tolist(), strict=True))

    spec, tables = bench(family).spec, tables_of(family)
    options = GpuOptions(size_classes_bytes=(1 << 18,), token_starts=True)
    return Encoder(
        spec,
        HostDevice(encode, join=HostJoin(shim_cache)),
        options,
        cuts=cuts_of(spec, tables),
        long_runs=long_runs_of(spec, tables),
    )


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_the_references(family: str, shim_cache: Path) -> None:
    """Long components of every kind between texts of every kind; nearly all of them are answered."""
    rng, one = random.Random(family), encoder_of(family, shim_cache)
    kinds = (
        lambda n: "".join(rng.choices(LETTERS, k=n)),
        lambda n: rng.choice("ae=\u4e2d") * n,
        lambda n: "".join(rng.choices("\u4e2d\u6587\u5b57\u00e9", k=n)),
        lambda n: "".join(rng.choices([*LETTERS, " ", "  "], k=n)),
        lambda n: "".join(rng.choices([*LETTERS, "\U000e0001", "<", "\n"], weights=[9] * 26 + [1] * 3, k=n)),
    )
    beside = ["", " ", "x", "\n", "\n\n\n", "<b>", "    ", BLANK * 2, "\u4e2d", "<b"]
    texts = [
        rng.choice(beside) + kind(rng.choice((700, 1_000, 1_900))) + rng.choice(beside)
        for kind in kinds
        for _ in range(12 if FULL else 3)
    ]
    documents = [text.encode() for text in texts]
    encoding = one.encode(documents, token_starts=True)
    for i, text in enumerate(texts):
        if i not in encoding.needs_cpu:
            ids, places = bench(family).expected(text)
            assert encoding.ids(i).tolist() == ids, repr(text[:60])
            character = np.cumsum((np.frombuffer(documents[i], np.uint8) & 0xC0) != 0x80) - 1
            assert character[encoding.token_starts(i)].tolist() == places
    assert len(encoding.needs_cpu) <= len(texts) // 3


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_what_does_not_fit_together_is_for_the_cpu(shim_cache: Path) -> None:
    """A U+2581 of the text itself is longer than the blank whose token it is."""
    one = encoder_of("ours", shim_cache)
    texts = ["the cat and the dog " * 40 + between + "dog and cat " * 40 for between in ("the ", f"the{BLANK}")]
    encoding = one.encode([text.encode() for text in texts])
    assert list(encoding.needs_cpu) == [1]
    assert encoding.ids(0).tolist() == bench("ours").expected(texts[0])[0]
