"""The merge stage over characters, on rules that no training would make: ranks at random, some characters unknown."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gpu_core.character_bpe import BLANK
from gpu_core.shim import HostPipeline, compiler
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables
from tests.data import FULL

KNOWN = ("a", "\u00e9", "\u4e2d", BLANK)
UNKNOWN = ("z", "\u00fc", "\U0001f600")


def random_tokenizer(rng: random.Random, n_products: int) -> bytes:
    """A file with rules in random order, several of them for one product."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *KNOWN]
    vocab = {name: i for i, name in enumerate(names)}
    pieces: list[str] = list(KNOWN)
    while len(pieces) < n_products + len(KNOWN):
        product = rng.choice(pieces) + rng.choice(pieces)
        if product not in vocab and len(product) <= 20:
            vocab[product] = len(vocab)
            pieces.append(product)
    splits = [(piece[:i], piece[i:]) for piece in pieces[len(KNOWN) :] for i in range(1, len(piece))]
    merges = [list(split) for split in splits if split[0] in vocab and split[1] in vocab]
    rng.shuffle(merges)
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "byte_fallback": True}
    return json.dumps({"added_tokens": [], "normalizer": normalizer, "model": model}).encode()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("seed", range(40 if FULL else 8))
def test_random_rules(seed: int, shim_cache: Path) -> None:
    """Words of characters of every width, of every length class up to the limit, and runs: the reference's ids."""
    rng = random.Random(seed)
    data = random_tokenizer(rng, rng.choice((4, 20, 120)))
    tables = build_tables(data, read_spec(data))
    reference = Tokenizer.from_str(data.decode())
    letters = (*KNOWN, " ", *UNKNOWN[: seed % 4])
    lengths = [*range(2, 40), 63, 64, 65, 66, 127, 200]
    words = ["".join(rng.choices(letters, k=n)) for n in lengths]
    words += [(rng.choice(("a", "\u00e9a", "\u4e2d\u4e2da", "a ", " " + BLANK)) * n)[:n] for n in (*lengths, 170)]
    pipeline = HostPipeline(tables, shim_cache, 64 << 10, max_documents=len(words))
    result = pipeline.encode([word.encode() for word in words])
    for n, word in enumerate(words):
        if result.reasons[n] == 0:
            assert result.document_ids(n).tolist() == reference.encode(word).ids, word
    assert result.reasons.count(0) > 0.9 * len(words)
