"""The merge stage on rule tables that no training would make: ranks at random, several rules for one product."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from gpu_core.bpe_file import Rules, byte_alphabet
from gpu_core.shim import HostPipeline, compiler
from gpu_core.slots import merged_one_at_a_time
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables
from tests.data import FULL

LETTERS = "abc"


def random_tokenizer(rng: random.Random, n_products: int, *, in_order: bool) -> bytes:
    """A GPT-2 style file. `in_order`: rules sorted by their products' ids, as trained files have them."""
    vocab = {char: i for i, char in enumerate(byte_alphabet())}
    pieces, merges = list(LETTERS), []
    while len(pieces) < n_products:
        product = rng.choice(pieces) + rng.choice(pieces)
        if product not in vocab and len(product) <= 20:
            vocab[product] = len(vocab)
            pieces.append(product)
    for product in pieces[len(LETTERS) :]:
        splits = [(product[:i], product[i:]) for i in range(1, len(product))]
        known = [split for split in splits if split[0] in vocab and split[1] in vocab]
        merges += rng.sample(known, k=rng.randint(1, len(known)))
    if not in_order:
        rng.shuffle(merges)
    model = {"type": "BPE", "vocab": vocab, "merges": [" ".join(merge) for merge in merges]}
    pre_tokenizer = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({"added_tokens": [], "pre_tokenizer": pre_tokenizer, "model": model}).encode()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("seed", range(40 if FULL else 6))
def test_random_rules(seed: int, in_order: bool, shim_cache: Path) -> None:
    """Words of three letters, of every length class up to the limit, and runs: the reference's ids."""
    rng = random.Random(seed)
    data = random_tokenizer(rng, rng.choice((6, 20, 120)), in_order=in_order)
    tables = build_tables(data, read_spec(data))
    assert not (in_order and tables.defines["SIDETOK_RANK_IDS"])
    reference = Tokenizer.from_str(data.decode())
    lengths = [*range(2, 40), 63, 64, 65, 66, 127, 200, 511, 512]
    words = ["".join(rng.choices(LETTERS, k=n)) for n in lengths]
    words += [(rng.choice(("a", "ab", "aab")) * n)[:n] for n in lengths]
    pipeline = HostPipeline(tables, shim_cache, 64 << 10, max_documents=len(words))
    result = pipeline.encode([word.encode() for word in words])
    assert not any(result.reasons)
    for n, word in enumerate(words):
        assert result.document_ids(n).tolist() == reference.encode(word).ids, word


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("seed", range(20 if FULL else 4))
def test_short_words_of_random_rules(seed: int, shim_cache: Path) -> None:
    """Many words of a tile, several to a warp, with products of several rules: the reference's ids."""
    rng = random.Random(1000 + seed)
    data = random_tokenizer(rng, rng.choice((12, 40, 300)), in_order=True)
    tables = build_tables(data, read_spec(data))
    reference = Tokenizer.from_str(data.decode())
    words = ["".join(rng.choices(LETTERS, k=rng.choice((2, 5, 8, 9, 12, 16, 17, 25, 32)))) for _ in range(500)]
    text = "".join(rng.choice((" ", "  ", "\n")) + word for word in words)
    pipeline = HostPipeline(tables, shim_cache, 64 << 10)
    assert pipeline.encode([text.encode()]).ids.tolist() == reference.encode(text).ids


def test_rules_that_must_be_merged_one_place_at_a_time() -> None:
    """A rule is one of these exactly when its product is part of a rule of lower rank."""
    a, b, ab, aba, abab = range(5)
    rules = Rules(np.array([ab, a, ab]), np.array([a, b, ab]), np.array([aba, ab, abab]))
    assert merged_one_at_a_time(rules).tolist() == [False, True, False]
    assert b == 1
