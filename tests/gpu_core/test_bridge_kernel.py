"""The kernels of BPE over characters, compiled for a host: the twin's stages, and the reference's ids."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpu_core import layout
from gpu_core.blank_runs import blank_run
from gpu_core.bridge_tables import Joins
from gpu_core.character_bpe import BLANK
from gpu_core.run_literals import split_literals
from gpu_core.shim import BatchResult, HostPipeline, compiler
from gpu_core.twin_bridge import BridgeTwin
from tests.data import FULL, SHARED, adversarial, corpus_windows
from tests.gpu_core.bridge_files import LITERALS
from tests.gpu_core.test_bridge import bench, tables_of
from tests.gpu_core.texts import random_text

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
CAPACITY = 256 << 10
LENGTHS = (
    0,
    1,
    31,
    32,
    33,
    63,
    64,
    65,
    layout.BRIDGE_TILE - 1,
    layout.BRIDGE_TILE,
    layout.BRIDGE_TILE + 1,
    3 * layout.BRIDGE_TILE + 7,
)
FAMILIES = ["ours", "ours_blanks", *(["gemma3"] if (SHARED / "tokenizers" / "gemma3").is_dir() else [])]
every_family = pytest.mark.parametrize("family", FAMILIES)
RARE = [BLANK, "\U000e0001", "\r", "\n\n\n", "\t\t", BLANK * 2, "<b", "\u0e01\u0e33", "the ", "\U0001f600"]
RUN = "\n" * 5 + BLANK * 6

_pipelines: dict[tuple[str, int], HostPipeline] = {}


def pipeline_of(family: str, shim_cache: Path, n_bytes: int = 16_000, n_documents: int = 64) -> HostPipeline:
    """The kernels of one tokenizer with a context that holds so much, made once for all tests."""
    sizes = ((16 << 10, 64), (CAPACITY, 4096))
    capacity, max_documents = next(size for size in sizes if size[0] >= n_bytes and size[1] >= n_documents)
    key = family, capacity
    if key not in _pipelines:
        _pipelines[key] = HostPipeline(tables_of(family), shim_cache, capacity, max_documents)
    return _pipelines[key]


@cache
def twin_of(family: str) -> BridgeTwin:
    """Cuts where the kernel does, and gives up where it does."""
    b = bench(family)
    blanks = blank_run(b.model, b.spec)
    joins = cache(Joins(tables_of(family).arrays))
    return BridgeTwin(b.model, *split_literals(b.spec), joins=joins, blanks=blanks)


def texts_of(family: str, n_texts: int, seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[str]:
    """Random texts with added tokens, whole and cut off, and what the stages treat specially."""
    rng = random.Random(f"{family} {seed}")
    literals = [token.content for token in bench(family).spec.added_tokens][-200:] + RARE
    return [random_text(rng, literals, rng.choice(lengths)) for _ in range(n_texts)]


def check(family: str, texts: list[str], result: BatchResult) -> int:
    """Compare a batch with the reference; returns how many documents were answered."""
    reference, answered = bench(family).reference, 0
    for n, text in enumerate(texts):
        if result.reasons[n] == 0:
            expected = reference.encode(text, add_special_tokens=False).ids
            assert result.document_ids(n).tolist() == expected, repr(text[:200])
            answered += 1
    return answered


def encode(family: str, shim_cache: Path, texts: list[str], *, backwards: bool = False) -> BatchResult:
    """One batch through the kernels."""
    documents = [text.encode() for text in texts]
    pipeline = pipeline_of(family, shim_cache, sum(map(len, documents)), len(documents))
    return pipeline.encode(documents, backwards=backwards)


@every_family
def test_planes_and_starts_are_the_twins(family: str, shim_cache: Path) -> None:
    """Split stage by itself: joined neighbours, characters of runs, runs that go on, and the starts."""
    twin, pipeline = twin_of(family), pipeline_of(family, shim_cache)
    for text in texts_of(family, 12, 1, (*LENGTHS, 5_000)):
        data = text.encode()
        starts, codes = pipeline.starts([data])
        assert np.flatnonzero(starts).tolist() == twin.starts(data)
        expected, at, before = np.zeros(len(data), np.uint8), 0, ""
        for char, behind in zip(text, text[1:] + "\n", strict=True):
            is_run = char in twin.runs or (twin.blanks is not None and char == " " and " " in (before, behind))
            expected[at] = bool(before and twin.joins(before, char)) | is_run << 1 | (is_run and char == before) << 2
            at, before = at + len(char.encode()), char
        np.testing.assert_array_equal(codes, expected)


@every_family
def test_tokens_are_the_twins(family: str, shim_cache: Path) -> None:
    """Ids, first bytes and the verdict of each document of a batch."""
    texts = texts_of(family, 60 if FULL else 25, 2)
    result = encode(family, shim_cache, texts)
    position = 0
    for n, text in enumerate(texts):
        twin = twin_of(family).encode(text.encode())
        assert twin.needs_cpu == (result.reasons[n] != 0), repr(text[:80])
        if not twin.needs_cpu:
            assert result.document_ids(n).tolist() == twin.ids
            first, last = result.document_tokens[n : n + 2]
            assert (result.token_starts[first:last] - position).tolist() == twin.token_starts
        position += len(text.encode())


@every_family
def test_random_documents_are_the_references(family: str, shim_cache: Path) -> None:
    """Property test, in one batch and in both orders of the threads; most documents are answered."""
    texts = texts_of(family, 400 if FULL else 60, 3)
    assert check(family, texts, encode(family, shim_cache, texts)) > 0.9 * len(texts)
    assert check(family, texts, encode(family, shim_cache, texts, backwards=True)) > 0.9 * len(texts)


@every_family
def test_real_text(family: str, shim_cache: Path) -> None:
    """Windows of all corpora, none of which needs the CPU."""
    texts = [sample.text for sample in corpus_windows(20 if FULL else 2, 3_000)]
    assert check(family, texts, encode(family, shim_cache, texts)) == len(texts)


@every_family
def test_adversarial_inputs(family: str, shim_cache: Path) -> None:
    """Small tricky inputs, several hundred to a batch; by default a part of them."""
    texts = [sample.text for sample in adversarial() if sample.text.isprintable() or sample.text.isascii() or FULL]
    texts = [text for text in texts if not any("\ud800" <= char < "\ue000" for char in text)]
    random.Random(1).shuffle(texts)
    texts = texts if FULL else texts[:300]
    answered = 0
    while texts:
        n = next(
            (n for n in range(1, len(texts)) if sum(len(t.encode()) for t in texts[:n]) > CAPACITY // 2), len(texts)
        )
        answered += check(family, texts[: min(n, 1_000)], encode(family, shim_cache, texts[: min(n, 1_000)]))
        texts = texts[min(n, 1_000) :]
    assert answered > 0


MIDDLE = "ab\n\n\t" + RUN + "<b>x<end>\u4e2d\u6587\U000e0001\u00e9 =====" + BLANK + " \r\n\U0001f600<table>"


@every_family
@pytest.mark.parametrize("before", ["the cat\r ", "\n\n\n\n\n\n", BLANK * 3, "\u4e2d\r\u6587"])
def test_every_place_of_a_tile_border(family: str, before: str, shim_cache: Path) -> None:
    """What the stages treat specially, moved over a tile border byte by byte, behind text and behind runs."""
    filler = (before * 300).encode()
    for shift in range(0, len(MIDDLE.encode()) + 2, 1 if FULL or family == "ours" else 5):
        text = filler[: layout.BRIDGE_TILE - shift].decode("utf-8", "ignore") + MIDDLE + "tail"
        assert check(family, [text], encode(family, shim_cache, [text])) == 1


RUNS = [(f, n) for f in FAMILIES for n in (63, 64, 65, 129, 512, 513, 1_100, 10_000) if f != "ours" or n in (65, 513)]


@pytest.mark.parametrize(("family", "length"), RUNS)
def test_runs_of_one_character_or_of_two(family: str, length: int, shim_cache: Path) -> None:
    """Runs longer than halo, window and limit, in every class: exact, or handed to the CPU."""
    runs = ["a", "1", "=", " ", "\n", "\t", "\u4e2d", "\u00e9", BLANK, "\n ", "\r", "\n\t", "ab", "\U000e0001", "<b>"]
    runs += ["\u0301", "\U0001f600", BLANK + "a", "\n\n\n\n\n\n\na", "\r\n"]
    around = [("", ""), ("x!", "y"), ("ab " * 270 + "(", "\n b")][: 1 if length > 5_000 and not FULL else 3]
    texts = [before + run * length + after for run in runs for before, after in around]
    answered = 0
    for first in range(0, len(texts), 6):
        part = [text for text in texts[first : first + 6] if len(text.encode()) < CAPACITY // 6]
        result = encode(family, shim_cache, part)
        answered += check(family, part, result)
        if length < 5_000:
            needs_cpu = [twin_of(family).encode(text.encode()).needs_cpu for text in part]
            assert needs_cpu == [reason != 0 for reason in result.reasons]
    assert answered >= 6 * len(around)


@every_family
def test_long_runs_are_followed_to_their_beginning(family: str, shim_cache: Path) -> None:
    """Runs of thousands of an added token's character, after anything, in one document or from one into the next."""
    for run in twin_of(family).runs.values():
        char = run.character
        texts = [
            before + char * n + "!" for n in (831, 3_713, 9_001) for before in ("", "a", " ", "\u4e2d", "\u00e9\n")
        ]
        texts += [char * 4_000, char * 5_001, "", char * 900 + "x" + char * 1_700, char, char * 64, "y"]
        # Bytes that are the end of the character, but not the character.
        texts += [chr(ord(char) ^ 0x1000) + char * 2_500 if ord(char) > 0x1000 else "\r" + char * 2_500]
        result = encode(family, shim_cache, texts)
        assert check(family, texts, result) == len(texts)


@every_family
def test_runs_of_blanks_beside_blank_characters(family: str, shim_cache: Path) -> None:
    """The model cannot tell a U+2581 from a blank: runs of both, of every length, in documents that touch."""
    assert (twin_of(family).blanks is None) == (family == "ours")
    rng = random.Random(family)
    pieces = [" ", "  ", " " * 5, " " * 6, " " * 31, " " * 32, " " * 63, BLANK, BLANK, "ab", "\n", "<b>", "\u4e2d"]
    texts = ["".join(rng.choices(pieces, k=rng.randint(1, 12))) for _ in range(300)]
    texts += [" " * n for n in range(1, 70)] + ["a" + " " * n + BLANK + " b" for n in range(70)]
    if family != "ours":
        texts += [before + " " * 3_000 + after for before in ("", "a", "\n", BLANK * 2) for after in ("", "ab", BLANK)]
        texts += ["\r" * (800 + n) + " " * 200 + BLANK + "x" for n in range(0, 64, 1 if FULL else 7)]
    result = encode(family, shim_cache, texts)
    answered = check(family, texts, result)
    assert answered > len(texts) - (4 if family != "ours" else 60)


@every_family
def test_nothing_is_left_of_earlier_replays(family: str, shim_cache: Path) -> None:
    """Batches of changing sizes on the same memory, empty ones and empty documents among them."""
    for seed, n in enumerate((9_000, 10, 0, 5_000, 1, 0, layout.BRIDGE_TILE)):
        texts = ["", *texts_of(family, 1, seed, (n // 2,)), "", *texts_of(family, 1, seed, (n - n // 2,)), ""]
        result = encode(family, shim_cache, texts)
        assert check(family, texts, result) >= 3
        assert result.completion["n_tokens"] == result.document_tokens[-1]
        assert result.completion["any_flagged"] == any(result.reasons)


def test_many_small_documents(shim_cache: Path) -> None:
    """Documents of 1 to 4 characters: a border every few bytes, in runs and in components."""
    rng = random.Random(6)
    texts = [
        "".join(rng.choices(["a", "b", " ", "\n", "\t", BLANK, "\u4e2d"], k=rng.randint(0, 4))) for _ in range(4_000)
    ]
    assert check("ours", texts, encode("ours", shim_cache, texts)) == len(texts)


@every_family
def test_invalid_utf8_goes_to_the_cpu_and_touches_nobody_else(family: str, shim_cache: Path) -> None:
    """Cut, overlong, surrogate, out of range, stray; also a character that a document border cuts into two."""
    pipeline = pipeline_of(family, shim_cache)
    bad = [b"\x80", b"a\xc3", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xc3("]
    for data in bad:
        for pad in (0, 700, layout.BRIDGE_TILE - 1, layout.BRIDGE_TILE, layout.BRIDGE_TILE + 1):
            good = ("ab\n" * 300)[:pad]
            result = pipeline.encode([good.encode(), data, "fine \u00e9".encode()])
            assert result.reasons == [0, 2, 0]
            assert check(family, [good], result) == 1
    for char in ("\u00e9", "\u4e2d", BLANK, "\U0001f600"):
        for cut in range(1, len(char.encode())):
            for pad in (0, layout.BRIDGE_TILE - 2, layout.BRIDGE_TILE - 1, layout.BRIDGE_TILE):
                first, second = (
                    b"a" * (pad % 400) + b"\n" * (pad - pad % 400) + char.encode()[:cut],
                    char.encode()[cut:],
                )
                assert pipeline.encode([first, second + b"b", b"fine"]).reasons == [2, 2, 0]


@every_family
def test_every_byte_of_an_unknown_character(family: str, shim_cache: Path) -> None:
    """Characters that are no entries become one id for each byte, alone and among others."""
    known = bench(family).model.characters
    unknown = [chr(point) for point in range(0x80, 0x110000, 4_001) if not 0xD800 <= point < 0xE000]
    unknown = [char for char in [*map(chr, range(32)), *unknown] if char not in known][:80]
    texts = [*unknown, "".join(unknown), "a".join(unknown), "\u4e2d".join(unknown)]
    assert check(family, texts, encode(family, shim_cache, texts)) == len(texts)


def test_counting_writes_no_ids(shim_cache: Path) -> None:
    """Without its flag an output stays as it was."""
    pipeline = pipeline_of("ours", shim_cache)
    pipeline.buffers["ids"][:] = 0xEE
    result = pipeline.encode([b"only\n\ncounted"], flags=0)
    assert result.document_tokens[-1] == len(bench("ours").expected("only\n\ncounted")[0])
    assert (result.ids == 0xEEEEEEEE).all()


def test_added_token_that_leaves_the_window(shim_cache: Path) -> None:
    """A component before an added token ends there, even if the token ends beyond the window."""
    assert max(LITERALS, key=len) in {token.content for token in bench("ours").spec.added_tokens}
    for literal in ("<table>", "<end>", "\n\n\n\n", BLANK * 5):
        for n in range(935, 965):
            text = "\rw" * 350 + "ab" * ((n - 700) // 2) + "a" * (n % 2) + literal + " tail"
            assert check("ours", [text], encode("ours", shim_cache, [text])) == 1


def test_a_run_that_is_too_long_to_follow(shim_cache: Path) -> None:
    """Beyond the limit the document needs the CPU, and the next one does not."""
    texts = ["\n" * (layout.MAX_WALK + 2 * layout.BRIDGE_TILE), "\n" * 2_000]
    pipeline = HostPipeline(tables_of("ours"), shim_cache, sum(map(len, texts)))
    result = pipeline.encode([text.encode() for text in texts])
    assert result.reasons == [5, 0]
    assert check("ours", texts, result) == 1
