"""The kernels compiled for a host: stage by stage the same as the twin, end to end the same as the reference."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gpu_core import layout
from gpu_core.shim import BatchResult
from tests.data import EMBEDDED, FULL, adversarial, corpus_windows
from tests.gpu_core.conftest import CAPACITY, Bench, device_families
from tests.gpu_core.texts import random_text

LENGTHS = (0, 1, 31, 32, 33, 63, 64, 65, layout.TILE - 1, layout.TILE, layout.TILE + 1, 3 * layout.TILE + 7)
every_family = pytest.mark.parametrize("bench", device_families(), indirect=True)
embedded_family = pytest.mark.parametrize("bench", [EMBEDDED], indirect=True)


def literals_of(bench: Bench) -> list[str]:
    """Added tokens of the tokenizer."""
    return [token.content for token in bench.spec.added_tokens]


def check(bench: Bench, texts: list[str], result: BatchResult) -> int:
    """Compare a batch with the reference; returns how many documents were answered."""
    answered = 0
    for n, text in enumerate(texts):
        if result.reasons[n] == 0:
            assert result.document_ids(n).tolist() == bench.reference_ids(text), repr(text[:200])
            answered += 1
    return answered


@embedded_family
def test_structs_are_laid_out_alike(bench: Bench) -> None:
    """Sizes, offsets and constants of the compiled source are those of `gpu_core.layout`."""
    expected = [
        layout.THREADS,
        layout.WINDOW,
        layout.HALO_LEFT,
        bench.tables.tile,
        layout.MAX_PRETOKEN,
        layout.MAX_LITERAL,
        layout.MAX_WALK,
        layout.EPOCH_SHIFT,
        layout.CHUNK,
        layout.ARRIVED_STRIDE,
    ]
    for struct in (layout.HEADER, layout.COMPLETION, layout.CONTROL, layout.FETCHED, layout.BATCH, layout.TABLES):
        fields: Mapping[str, Any] = struct.fields or {}
        expected += [struct.itemsize, *(fields[name][1] for name in struct.names or ())]
    numbers = bench.pipeline.layout_numbers()
    assert numbers[:10] + numbers[11:] == expected


@every_family
def test_classes_and_starts_are_the_twins(bench: Bench) -> None:
    """Split stage by itself, on texts of critical lengths and on a mixture that crosses several tiles."""
    rng = random.Random(1)
    for n in [*LENGTHS, 5_000]:
        data = random_text(rng, literals_of(bench), n).encode()
        starts, codes = bench.pipeline.starts([data])
        twin_starts, _literals, _blotted = bench.twin.starts(data)
        np.testing.assert_array_equal(starts, twin_starts)
        if bench.twin.find_literals(data) == []:
            np.testing.assert_array_equal(codes, _blotted.codes)


@every_family
def test_tokens_are_the_twins(bench: Bench) -> None:
    """Ids, first bytes and the verdict of each document of a batch."""
    rng = random.Random(2)
    texts = [random_text(rng, literals_of(bench), rng.choice(LENGTHS)) for _ in range(60 if FULL else 20)]
    result = bench.pipeline.encode([text.encode() for text in texts])
    position = 0
    for n, text in enumerate(texts):
        twin = bench.twin.encode(text.encode())
        assert twin.needs_cpu == (result.reasons[n] != 0), repr(text[:80])
        if not twin.needs_cpu:
            assert result.document_ids(n).tolist() == twin.ids
            first, last = result.document_tokens[n : n + 2]
            assert (result.token_starts[first:last] - position).tolist() == twin.token_starts
        position += len(text.encode())


@every_family
def test_random_documents_are_the_references(bench: Bench) -> None:
    """Property test, in one batch and in both orders of the threads; most documents are answered."""
    rng = random.Random(3)
    texts = [random_text(rng, literals_of(bench), rng.choice((5, 40, 200, 900))) for _ in range(800 if FULL else 150)]
    data = [text.encode() for text in texts]
    forwards, backwards = bench.pipeline.encode(data), bench.pipeline.encode(data, backwards=True)
    check(bench, texts, forwards)
    np.testing.assert_array_equal(forwards.ids, backwards.ids)
    np.testing.assert_array_equal(forwards.document_tokens, backwards.document_tokens)


@every_family
def test_windows_of_the_corpora(bench: Bench) -> None:
    """Real text as the reference has it; all of it but what NFC may change is answered."""
    samples = corpus_windows(40 if FULL else 3, 5_000, seed=4)
    for first in range(0, len(samples), 12):
        texts = [sample.text for sample in samples[first : first + 12]]
        result = bench.pipeline.encode([text.encode() for text in texts])
        answered = check(bench, texts, result)
        assert answered == sum(not bench.twin.encode(text.encode()).needs_cpu for text in texts)


@every_family
def test_adversarial_inputs(bench: Bench) -> None:
    """Every small tricky input, several hundred to a batch."""
    batch: list[str] = []
    answered = n_bytes = 0
    samples = adversarial()
    for i, sample in enumerate(samples):
        batch.append(sample.text)
        n_bytes += len(sample.text.encode())
        if n_bytes > CAPACITY - 50_000 or len(batch) == 1_000 or i + 1 == len(samples):
            answered += check(bench, batch, bench.pipeline.encode([text.encode() for text in batch]))
            batch, n_bytes = [], 0
    assert answered > 0.7 * len(samples)


@embedded_family
def test_every_place_of_a_tile_border(bench: Bench) -> None:
    """What the stages treat specially, moved over a tile border byte by byte."""
    middle = "it's 12345 'ſx ...\n\n \t \n x\u3000\u3000y 中文<｜end▁of▁sentence｜> ab!\r\n"
    texts = [f"{'ab ' * 300}"[: layout.TILE - shift] + middle + "tail" for shift in range(len(middle.encode()) + 2)]
    result = bench.pipeline.encode([texts[0].encode()])
    assert check(bench, texts[:1], result) == 1
    for text in texts[1:]:
        assert check(bench, [text], bench.pipeline.encode([text.encode()])) == 1


@every_family
@pytest.mark.parametrize("length", [63, 64, 65, 129, 512, 513, 1_100, 5_000])
def test_runs_of_one_character_or_of_two(bench: Bench, length: int) -> None:
    """Runs longer than halo, window and limit, in every class: exact, or handed to the CPU."""
    texts = []
    for run in (
        "a",
        "1",
        "=",
        " ",
        "\n",
        "\t",
        "中",
        "é",
        "\u3000",
        "\n ",
        " \n",
        "\r\n",
        "1\n",
        "a ",
        "'s",
        "٣",
        "\u0301",
    ):
        texts += [run * length, f"x!{run * length}y", f"{'ab ' * 270}({run * length}\n b"]
    for first in range(0, len(texts), 6):
        part = texts[first : first + 6]
        check(bench, part, bench.pipeline.encode([text.encode() for text in part]))


@embedded_family
def test_walks_find_what_lies_far_before_and_behind(bench: Bench) -> None:
    """Long runs of digits do not send a document to the CPU when their pre-tokens are short."""
    texts = ["1" * 9_000, "x" + "1" * 5_001 + "y", "\u0663" * 3_000, "12\n" * 2_000, "\n ab" * 1_500]
    texts += [f"{'x' * n} " + "7" * 2_500 for n in range(1, 4)]
    result = bench.pipeline.encode([text.encode() for text in texts])
    assert check(bench, texts, result) == len(texts)


@embedded_family
def test_nothing_is_left_of_earlier_replays(bench: Bench) -> None:
    """Batches of changing sizes on the same memory, empty ones and empty documents among them."""
    rng = random.Random(5)
    for n in (30_000, 10, 0, 5_000, 1, 0, layout.TILE, 20_000):
        texts = ["", random_text(rng, [], n // 2), "", random_text(rng, [], n - n // 2), ""]
        result = bench.pipeline.encode([text.encode() for text in texts])
        answered = check(bench, texts, result)
        assert answered >= 3
        assert result.completion["epoch"] == bench.pipeline.epoch
        assert result.completion["n_tokens"] == result.document_tokens[-1]
        assert result.completion["any_flagged"] == any(result.reasons)
    assert bench.pipeline.encode([]).document_tokens.tolist() == [0]


@every_family
def test_text_that_blocks_fetch(bench: Bench) -> None:
    """The ids are those of text that lies there, whatever was fetched before; also where a tile looks far around."""
    rng = random.Random(8)
    texts = ["1" * 9_000, "x" + "1" * 5_001 + "y", "12\n" * 2_000 + " \n" * 3_000, " " * 2_000 + "\n", "", "a"]
    texts += [random_text(rng, literals_of(bench), n) for n in (1, 5_000, 20_000, 300)]
    for n_fetchers in (0, 1, 3, 3, 0, 2):
        batch = rng.sample(texts, rng.randint(1, len(texts)))
        data = [text.encode() for text in batch]
        fetched, plain = bench.pipeline.encode(data, n_fetchers=n_fetchers), bench.pipeline.encode(data)
        assert fetched.ids.tolist() == plain.ids.tolist()
        assert fetched.reasons == plain.reasons
        assert fetched.document_tokens.tolist() == plain.document_tokens.tolist()
        assert fetched.completion["n_tokens"] == plain.document_tokens[-1]


@embedded_family
def test_many_small_documents(bench: Bench) -> None:
    """Documents of 1 to 4 bytes: a border every few bytes; also when their starts are fetched, in two chunks."""
    rng = random.Random(6)
    texts = ["".join(rng.choices("ab1 '\nst!", k=rng.randint(0, 4))) for _ in range(4_000)]
    for n_fetchers in (0, 3):
        result = bench.pipeline.encode([text.encode() for text in texts], n_fetchers=n_fetchers)
        assert check(bench, texts, result) == len(texts)


@embedded_family
def test_invalid_utf8_goes_to_the_cpu_and_touches_nobody_else(bench: Bench) -> None:
    """Cut, overlong, surrogate, out of range, stray; also when a character is cut at the end of its document."""
    bad = [
        b"\x80",
        b"a\xc3",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xff",
        b"\xe4\xb8",
        b"\xc3(",
    ]
    for data in bad:
        for pad in (0, 700, layout.TILE - 1, layout.TILE, layout.TILE + 1):
            good = "ab " * (pad // 3) + "ab "[: pad % 3]
            result = bench.pipeline.encode(
                [good.encode(), data, b"\xb8 fine" if data == b"\xe4\xb8" else "fine é".encode()]
            )
            assert result.reasons[1] == 2
            assert check(bench, [good], result) == 1
            if data != b"\xe4\xb8":
                assert result.reasons[2] == 0


@embedded_family
def test_counting_writes_no_ids(bench: Bench) -> None:
    """Without its flag an output stays as it was."""
    bench.pipeline.buffers["ids"][:] = 0xEE
    result = bench.pipeline.encode([b"only counted"], flags=0)
    assert result.document_tokens[-1] == len(bench.reference_ids("only counted"))
    assert (result.ids == 0xEEEEEEEE).all()


@pytest.mark.parametrize("bench", [f for f in device_families() if f in {"split_bpe", "qwen3"}], indirect=True)
def test_text_that_may_change_under_nfc_goes_to_the_cpu(bench: Bench) -> None:
    """Exactly the documents whose quick check fails."""
    texts = [
        "e\u0301",
        "a\u0323\u0301",
        "a\u0301\u0323",
        "\u1100\u1161",
        "\uac00",
        "\u0644\u064e\u0651",
        "x\u0338",
        "é",
        "q\u0323",
    ]
    result = bench.pipeline.encode([text.encode() for text in texts])
    for text, reason in zip(texts, result.reasons, strict=True):
        twin = bench.twin.encode(text.encode())
        assert (reason == 3) == twin.needs_cpu
    check(bench, texts, result)
    assert 0 < sum(map(bool, result.reasons)) < len(texts)


@embedded_family
def test_reasons_of_many_documents(bench: Bench) -> None:
    """Each document has its own reason, whatever those before it in the same places had; a few behind them do not."""
    rng = random.Random(9)
    for n in (4_096, 1, 2, 3, 5, 4_095, 1_025, 1_024):
        bad = {i for i in range(n) if rng.random() < 0.3}
        long = {i for i in range(n) if rng.random() < 2 / n}
        texts = [b"=" * 600 if i in long else b"\xff" if i in bad else b"ab" for i in range(n)]
        for n_fetchers in (0, 2):
            result = bench.pipeline.encode(texts, n_fetchers=n_fetchers)
            assert result.reasons == [1 if i in long else 2 if i in bad else 0 for i in range(n)]
            assert bool(result.completion["any_flagged"]) == bool(bad | long)
