"""Decoding of many sequences: texts of the reference, bytes before repair, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from gpu_core.decode_tables import build_decode_tables
from gpu_core.decoder import DecodeOptions, Decoder, load_decoder
from gpu_core.errors import NoFreeContext, UnsupportedTokenizer
from gpu_core.shim import compiler
from gpu_core.shim.decoding import HostDecodeDevice
from gpu_core.spec import read_spec
from tests.data import FULL, adversarial, corpus_windows, families, tokenizer_json

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
BYTE_LEVEL: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
FUSED: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP: dict[str, Any] = {"type": "Strip", "content": " ", "start": 2, "stop": 0}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
SMALL = DecodeOptions(capacity_ids=4096, max_sequences=100)
QUICK = {"byte_bpe", "split_bpe", "embedded", "llama3_1", "llama2"}


def is_supported(family: str) -> bool:
    """Whether texts of the tokenizer can be decoded."""
    data = tokenizer_json(family)
    try:
        build_decode_tables(data, read_spec(data))
    except UnsupportedTokenizer:
        return False
    return True


def decoder_families() -> list[str]:
    """Tokenizers at hand, in the full run all of them."""
    return [family for family in families() if (FULL or family in QUICK) and is_supported(family)]


def file_of(vocab: list[str], decoder: Any, added: list[tuple[int, str, bool]] | None = None) -> bytes:
    """A tokenizer.json with a BPE model of these entries."""
    tokens = [{"id": i, "content": content, "special": special, **FLAGS} for i, content, special in added or []]
    model = {"type": "BPE", "vocab": {entry: i for i, entry in enumerate(vocab)}, "merges": []}
    parts = {"version": "1.0", "added_tokens": tokens, "decoder": decoder, "model": model}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor"))
    return json.dumps(empty | parts).encode()


def check(decoder: Decoder, reference: Tokenizer, sequences: list[list[int]]) -> None:
    """Texts with and without special tokens, and bytes that agree with them."""
    for skip in (False, True):
        decoding = decoder.decode(sequences, skip_special_tokens=skip)
        assert len(decoding) == len(sequences)
        for i, text in enumerate(reference.decode_batch(sequences, skip_special_tokens=skip)):
            assert decoding.text(i) == text
            assert decoding.n_bytes(i) == len(decoding.bytes(i))
            if "\ufffd" not in text:
                assert decoding.bytes(i).decode() == text
        decoding.release()


@pytest.mark.parametrize("family", decoder_families())
def test_texts_are_the_references(family: str, shim_cache: Path) -> None:
    """Random ids, most of which form no UTF-8, and ids of texts; in one launch and in several."""
    data, rng = tokenizer_json(family), random.Random(family)
    decoder, reference = load_decoder(data, HostDecodeDevice(shim_cache), SMALL), Tokenizer.from_str(data.decode())
    n_ids = len(decoder.tables.pieces) + 9
    for n in (1, 2, 33, 100, 130):
        lengths = [rng.choice((0, 1, 2, 7, 60, 300)) for _ in range(n)]
        check(decoder, reference, [[rng.randrange(n_ids) for _ in range(length)] for length in lengths])
    check(decoder, reference, [[], [rng.randrange(n_ids) for _ in range(12_000)], []])
    texts = [s.text for s in adversarial() if not any(0xD800 <= ord(char) < 0xE000 for char in s.text)]
    texts = [*texts[:: 1 if FULL else 20], *(sample.text for sample in corpus_windows(3, 400))]
    check(decoder, reference, [encoding.ids for encoding in reference.encode_batch(texts)])


@pytest.mark.parametrize("decoder", [BYTE_LEVEL, {"type": "Sequence", "decoders": [BYTE_LEVEL, {"type": "Fuse"}]}])
def test_entries_and_added_tokens(decoder: Any, shim_cache: Path) -> None:
    """Entries beyond the byte alphabet, added tokens that are entries, ids without entry, repeated added tokens."""
    added = [(9, "é x", True), (9, "Ġq", False), (0, "a", True), (2, "Ã", False), (1, "Ġ", True), (1, "Ġ", False)]
    data = file_of(["a", "Ġ", "Ã", "½", "\u4f60", "Ġb" * 40], decoder, added)
    reference = Tokenizer.from_str(data.decode())
    rng = random.Random(5)
    sequences = [[rng.randrange(12) for _ in range(rng.randrange(9))] for _ in range(300)]
    check(load_decoder(data, HostDecodeDevice(shim_cache), SMALL), reference, [*sequences, [4294967295, 5, 0]])


@pytest.mark.parametrize("steps", [FUSED, [*FUSED, STRIP]])
def test_bytes_as_entries(steps: list[Any], shim_cache: Path) -> None:
    """A run of byte entries is text as a whole or not at all; blanks at the beginning are stripped."""
    entries = [
        "▁a",
        "<0xE4>",
        "<0xBD>",
        "<0xA0>",
        "<0x+F>",
        "b▁▁",
        "<0xzz>",
        "<0x41>",
        "▁",
        "<0x20>",
        "é",
        "▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
    ]
    data = file_of(entries, {"type": "Sequence", "decoders": steps}, [(11, "<0x42>", True), (12, "▁<x>", True)])
    reference = Tokenizer.from_str(data.decode())
    rng = random.Random(6)
    sequences = [[rng.choice((1, 2, 3, rng.randrange(15))) for _ in range(rng.randrange(9))] for _ in range(1500)]
    check(load_decoder(data, HostDecodeDevice(shim_cache), SMALL), reference, sequences)


@pytest.mark.parametrize(
    ("decoder", "vocab", "reason"),
    [
        (None, ["a"], "none"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, ["a"], "WordPiece"),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, ["a"], "Metaspace"),
        ({"type": "Sequence", "decoders": [*FUSED, STRIP | {"stop": 1}]}, ["a"], "stripped"),
        ({"type": "Sequence", "decoders": [FUSED[0] | {"pattern": {"Regex": "x"}}, *FUSED[1:]]}, ["a"], "string"),
        ({"type": "Sequence", "decoders": FUSED}, ["a", ""], "without content"),
    ],
)
def test_what_cannot_be_decoded_exactly_is_refused(decoder: Any, vocab: list[str], reason: str) -> None:
    """Other decoders, with the reason; so are models that are not BPE, and two entries of one id."""
    data = file_of(vocab, decoder)
    with pytest.raises(UnsupportedTokenizer, match=f"decoding: .*{reason}"):
        build_decode_tables(data, read_spec(data))


def test_models_that_are_refused() -> None:
    """A model that is not BPE, and a vocabulary in which one id has two entries."""
    file = json.loads(file_of(["a", "b"], BYTE_LEVEL))
    twice = json.dumps(file | {"model": file["model"] | {"vocab": {"a": 1, "b": 1}}}).encode()
    with pytest.raises(UnsupportedTokenizer, match="one id"):
        build_decode_tables(twice, read_spec(twice))
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    other = json.dumps(file | {"model": model}).encode()
    with pytest.raises(UnsupportedTokenizer, match="WordLevel"):
        build_decode_tables(other, read_spec(other))


def test_contexts_are_held_and_come_back(shim_cache: Path) -> None:
    """A result holds its context until it is released or gone; a result of several launches holds none."""
    device = HostDecodeDevice(shim_cache)
    decoder = load_decoder(file_of(["a", "b" * 50], BYTE_LEVEL), device, DecodeOptions(1024, 10, 2))
    held = [decoder.decode([[0]]) for _ in range(2)]
    with pytest.raises(NoFreeContext):
        decoder.decode([[0]])
    held.pop()
    large = decoder.decode([[1] * 1000, [0]])
    assert device.n_launches > 3
    assert [large.n_bytes(0), large.text(1)] == [50_000, "a"]
    assert decoder.decode([[0, 0]]).bytes(0) == b"aa"
    assert held[0].text(0) == "a"


def test_sequences_of_many_kinds(shim_cache: Path) -> None:
    """Lists, tuples and arrays of integers; no sequences; numbers that are no ids are an error, and nothing is lost."""
    decoder = load_decoder(file_of(["a", "b"], BYTE_LEVEL), HostDecodeDevice(shim_cache), DecodeOptions(64, 4, 1))
    rows: list[Any] = [[0, 1], (1,), np.array([1, 0], np.int64), np.array([0], np.uint32), np.zeros(0)]
    assert [decoder.decode(rows).text(i) for i in range(5)] == ["ab", "b", "ba", "a", ""]
    assert len(decoder.decode([])) == 0
    wrongs: tuple[Any, ...] = ([-1], [1 << 32], np.array([-1]), np.array([1 << 33]), np.array([0.5]))
    for wrong in wrongs:
        with pytest.raises(OverflowError):
            decoder.decode([wrong])
    assert decoder.decode([[1]]).text(0) == "b"


@pytest.mark.parametrize("wait", ["adaptive", "spin", "block"])
def test_waits(wait: str, shim_cache: Path) -> None:
    """Every wait mode ends."""
    decoder = load_decoder(
        file_of(["a", "b"], BYTE_LEVEL), HostDecodeDevice(shim_cache), DecodeOptions(64, 4, 1, wait=wait)
    )
    assert [decoder.decode([[0, 1] * n]).text(0) for n in range(4)] == ["", "ab", "abab", "ababab"]
