"""Documents that NFC may change: rewritten ones have the ids of the document, by the kernels and by the reference."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers

from gpu_core.classes import normal_form_classes
from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import FLAG_IDS, FLAG_NORMAL_FORM, FLAG_TOKEN_STARTS, REASON_NOT_NORMAL, REASONS
from gpu_core.normal_form import MAX_MARKS, Rewriter, passes_quick_check, uncertain_characters
from gpu_core.options import GpuOptions
from gpu_core.shim import HostPipeline
from gpu_core.spec import AddedToken, TokenizerSpec, read_spec
from tests.data import FULL, adversarial, corpus_windows, families, tokenizer_json
from tests.gpu_core.conftest import CAPACITY, Bench

FAMILIES = [f for f in families() if f in {"split_bpe", "qwen3"} | ({"qwen2_5"} if FULL else set())]
NFC = normalizers.NFC().normalize_str
PIECES = (
    *("a", "e", " ", "\n", "'s", "1", "<", ">", ".", "é", "中文", "한", "Z", "  ", "="),
    *("\u0301", "\u0323", "\u0338", "e\u0301", "a\u0323\u0301", "a\u0301\u0323", "A\u030a", "\u212b", "\u1100\u1161"),
    *("\u0958", "\u09bf", "\u09be", "\u0b95\u0bbe", "q\u0323", "ﬁ", "\u037e", "\u0344", "\u2126"),
)
every_nfc_family = pytest.mark.parametrize("bench", FAMILIES, indirect=True)


def spec_with(*contents: str, **flags: bool) -> TokenizerSpec:
    """The NFC tokenizer with these added tokens instead of its own."""
    defaults = dict.fromkeys(("special", "normalized", "single_word", "lstrip", "rstrip"), False)
    base = read_spec(tokenizer_json("split_bpe"))
    tokens = tuple(AddedToken(id=i, content=content, **(defaults | flags)) for i, content in enumerate(contents))
    fields = {name: getattr(base, name) for name in TokenizerSpec.__dataclass_fields__}
    return TokenizerSpec(**(fields | {"added_tokens": tokens}))


def encoder_of(bench: Bench, shim_cache: Path) -> Encoder:
    """An encoder over the kernels on the host, one document at a time."""
    # Small: a block of the grid costs time even if it has no text.
    pipeline = HostPipeline(bench.tables, shim_cache, 8 << 10)

    def encode(document: bytes, flags: int = 0) -> list[tuple[int, int]] | int:
        one = pipeline if len(document) <= pipeline.capacity else bench.pipeline
        result = one.encode([document], flags=flags | FLAG_IDS | FLAG_TOKEN_STARTS)
        starts = result.token_starts.tolist()
        return result.reasons[0] or list(zip(result.ids.tolist(), starts, strict=True))

    options = GpuOptions(size_classes_bytes=(CAPACITY,), token_starts=True)
    device = HostDevice(encode, encode_normal=lambda document: encode(document, FLAG_NORMAL_FORM))
    return Encoder(bench.spec, device, options, NFC)


def random_text(rng: random.Random, literals: list[str]) -> str:
    """Marks, characters that compose or decompose, and added tokens, whole or in part."""
    parts = rng.choices(PIECES, k=rng.randrange(1, 25))
    for _ in range(rng.randrange(4) if literals else 0):
        literal = rng.choice(literals)
        cut = rng.choice((len(literal), rng.randrange(len(literal)) + 1))
        parts.insert(rng.randrange(len(parts) + 1), literal[:cut])
    return "".join(parts)


def check(bench: Bench, shim_cache: Path, texts: list[str]) -> tuple[int, int]:
    """Ids against the reference; how many documents that fail the quick check were answered, and how many not."""
    one, n_saved, n_left = encoder_of(bench, shim_cache), 0, 0
    encoding = one.encode([text.encode() for text in texts])
    counts = one.encode([text.encode() for text in texts], count_only=True)
    assert counts.needs_cpu == encoding.needs_cpu
    for i, text in enumerate(texts):
        if i in encoding.needs_cpu:
            assert encoding.ids(i).tolist() == []
            n_left += encoding.needs_cpu[i] == REASONS[REASON_NOT_NORMAL]
            continue
        expected = bench.reference_ids(text)
        assert encoding.ids(i).tolist() == expected, repr(text)
        assert encoding.n_tokens(i) == counts.n_tokens(i) == len(expected)
        n_saved += not passes_quick_check(text)
    return n_saved, n_left


@every_nfc_family
def test_random_texts(bench: Bench, shim_cache: Path) -> None:
    """Whatever marks and added tokens stand beside each other, an answer is the reference's."""
    rng, literals = random.Random(3), [token.content for token in bench.spec.added_tokens]
    texts = [random_text(rng, literals) for _ in range(3000 if FULL else 400)]
    n_saved, n_left = check(bench, shim_cache, texts)
    assert n_saved > len(texts) // 2
    assert n_left < len(texts) // 20


@every_nfc_family
def test_collected_texts(bench: Bench, shim_cache: Path) -> None:
    """The adversarial collection, and windows of corpora as they are and with everything decomposed."""
    nfd = normalizers.NFD().normalize_str
    windows = [sample.text for sample in corpus_windows(60 if FULL else 4, 300)]
    texts = [s.text for s in adversarial() if not any(0xD800 <= ord(char) < 0xE000 for char in s.text)]
    doubtful = [text for text in [*texts, *windows, *map(nfd, windows)] if not passes_quick_check(text)]
    n_saved, n_left = check(bench, shim_cache, doubtful if FULL else doubtful[-150:])
    assert n_saved > 20 * n_left


@pytest.mark.parametrize("family", FAMILIES)
def test_rewritten_texts_have_the_same_ids(family: str) -> None:
    """The reference gives a rewritten text the ids of the original; so the rewriting by itself is exact."""
    data = tokenizer_json(family)
    spec, reference = read_spec(data), Tokenizer.from_str(data.decode())
    rewriter, rng, n = Rewriter(spec, NFC), random.Random(5), 0
    literals = [token.content for token in spec.added_tokens]
    for _ in range(2000):
        text = random_text(rng, literals)
        rewritten = rewriter.rewrite(text.encode())
        if rewritten is not None:
            n += 1
            both = reference.encode_batch([text, rewritten.decode()], add_special_tokens=False)
            assert both[0].ids == both[1].ids, repr(text)
    assert n > 1000


def certain_characters() -> list[str]:
    """Characters with a class or a part in a composition, but not those on which sides may differ."""
    codes = {c for c in range(0x30000) if normal_form_classes()[c] or unicodedata.decomposition(chr(c))}
    codes |= {ord(char) for code in codes for char in unicodedata.normalize("NFD", chr(code))}
    codes -= {*uncertain_characters(), *range(0xD800, 0xE000)}
    return [chr(code) for code in sorted(codes)]


def test_certain_characters_are_normalized_alike() -> None:
    """Python and the reference agree on every certain character, alone and in texts of many."""
    rng, characters = random.Random(8), certain_characters()
    assert len(characters) > 4000
    texts = ["x".join(characters), "x".join(unicodedata.normalize("NFD", char) for char in characters)]
    marks = [char for char in characters if normal_form_classes()[ord(char)]]
    for _ in range(400 if FULL else 40):
        texts.append("".join(rng.choices(characters, k=1000)))
        texts.append("".join(rng.choice(characters) + rng.choice(marks) + rng.choice(marks) for _ in range(1000)))
        texts.append("".join(chr(rng.randrange(0xAC00, 0xD7A4)) + rng.choice(marks) for _ in range(100)))
    for text in texts:
        assert unicodedata.normalize("NFC", text) == NFC(text)


def test_uncertain_characters() -> None:
    """A character that only one side may know leaves its gap to the reference's normalizer, where there is one."""
    new = chr(next(code for code in sorted(uncertain_characters()) if code > 0x1000))
    text = f"{new}e\u0301<x>a".encode()
    assert Rewriter(spec_with("<x>")).rewrite(text) is None
    assert Rewriter(spec_with("<x>"), NFC).rewrite(text) == f"{NFC(new)}é<x>a".encode()


def test_long_runs_of_marks_are_left() -> None:
    """Sorting them would take the square of their number."""
    rewriter = Rewriter(spec_with(), NFC)
    assert rewriter.rewrite(("e" + "\u0323\u0301" * (MAX_MARKS // 2)).encode()) is not None
    assert rewriter.rewrite(("e" + "\u0301" * (MAX_MARKS + 1)).encode()) is None
    assert rewriter.rewrite(("e\u0301" * 10_000).encode()) == ("é" * 10_000).encode()


def test_added_tokens_must_stay_what_they_are() -> None:
    """Gaps are normalized by themselves; a document is left to the CPU where that makes or breaks an added token."""
    rewriter = Rewriter(spec_with("<x>", "é", "<x>é"), NFC)
    assert rewriter.rewrite("e\u0301".encode()) is None  # would become an added token
    assert rewriter.rewrite("<x>e\u0301".encode()) is None  # would become a longer one
    assert rewriter.rewrite("<x>\u0338 a".encode()) == "<x>\u0338 a".encode()  # must not compose with the token
    assert rewriter.rewrite("a\u0301<x>b\u0301".encode()) == "á<x>b\u0301".encode()
    assert rewriter.rewrite("a\u0301\n<x>u\u0301é".encode()) == "á\n<x>úé".encode()
    assert Rewriter(spec_with(), NFC).rewrite("e\u0301".encode()) == "é".encode()


def test_what_is_not_certain_is_left() -> None:
    """Added tokens with flags, and bytes that are no UTF-8."""
    rewriter = Rewriter(spec_with("<x>", lstrip=True), NFC)
    assert rewriter.rewrite("a\u0301 <x>".encode()) is None
    assert rewriter.rewrite("a\u0301 <y>".encode()) == "á <y>".encode()
    assert rewriter.rewrite(b"a\xcc\x81\xff") is None


def answers(document: bytes) -> list[tuple[int, int]] | int:
    """One id for each byte of text that passes the quick check."""
    return normal_answers(document) if passes_quick_check(document.decode()) else REASON_NOT_NORMAL


def normal_answers(document: bytes) -> list[tuple[int, int]] | int:
    """One id for each byte; a pre-token that is too long in texts with a Z."""
    return 1 if b"Z" in document else [(byte, i) for i, byte in enumerate(document)]


def device() -> HostDevice:
    """A device with the quick check on or off."""
    return HostDevice(answers, encode_normal=normal_answers)


def test_only_plain_ids_are_tried_again() -> None:
    """Token starts would be those of another text; what the device refuses then has that reason; places are kept."""
    spec, options = spec_with(), GpuOptions(size_classes_bytes=(64,), token_starts=True)
    documents = [b"one", "e\u0301".encode(), "Zb\u0301".encode(), b"two", "b\u0301".encode()]
    one = Encoder(spec, device(), options)
    encoding = one.encode(documents)
    assert encoding.needs_cpu == {2: REASONS[1]}
    found = [bytes(encoding.ids(i).tolist()) for i in range(5)]
    assert found == [b"one", "é".encode(), b"", b"two", "b\u0301".encode()]
    assert set(one.encode(documents, token_starts=True).needs_cpu) == {1, 2, 4}
    encoding.release()
    assert len(one._free[0]) == options.contexts_per_class


def test_several_replays_and_few_contexts() -> None:
    """A batch of several replays is tried again too; with one context left, the call copies what lies in it."""
    spec, options = spec_with(), GpuOptions(size_classes_bytes=(64,), contexts_per_class=2)
    one = Encoder(spec, device(), options)
    documents = [f"{i} e\u0301 ".encode() * 7 for i in range(6)]
    encoding = one.encode(documents)
    assert encoding.needs_cpu == {}
    assert [bytes(encoding.ids(i).tolist()).decode() for i in range(6)] == [f"{i} é " * 7 for i in range(6)]
    del encoding
    keep = one.lease(1, 1)
    again = one.encode(documents[:1])
    assert (again.needs_cpu, bytes(again.ids(0).tolist()).decode()) == ({}, "0 é " * 7)
    counted = one.encode(documents[:1], count_only=True)
    assert (counted.needs_cpu, counted.n_tokens(0)) == ({}, len("0 é ".encode()) * 7)
    keep.release()
