"""Documents that NFC changes: rewritten ones have the ids of the document, through the kernels and by the reference."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers

from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import REASONS
from gpu_core.normal_form import Rewriter, passes_quick_check
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

    def encode(document: bytes) -> list[tuple[int, int]] | int:
        result = (pipeline if len(document) <= pipeline.capacity else bench.pipeline).encode([document])
        starts = result.token_starts.tolist()
        return result.reasons[0] or list(zip(result.ids.tolist(), starts, strict=True))

    options = GpuOptions(size_classes_bytes=(CAPACITY,), token_starts=True)
    return Encoder(bench.spec, HostDevice(encode), options, NFC)


def random_text(rng: random.Random, literals: list[str]) -> str:
    """Marks, characters that compose or decompose, and added tokens, whole or in part."""
    parts = rng.choices(PIECES, k=rng.randrange(1, 25))
    for _ in range(rng.randrange(4) if literals else 0):
        literal = rng.choice(literals)
        cut = rng.choice((len(literal), rng.randrange(len(literal)) + 1))
        parts.insert(rng.randrange(len(parts) + 1), literal[:cut])
    return "".join(parts)


def check(bench: Bench, shim_cache: Path, texts: list[str]) -> int:
    """Ids against the reference; returns how many documents the rewritten text saved from the CPU."""
    one, n_saved = encoder_of(bench, shim_cache), 0
    encoding = one.encode([text.encode() for text in texts])
    counts = one.encode([text.encode() for text in texts], count_only=True)
    assert counts.needs_cpu == encoding.needs_cpu
    for i, text in enumerate(texts):
        if i in encoding.needs_cpu:
            assert encoding.ids(i).tolist() == []
            continue
        expected = bench.reference_ids(text)
        assert encoding.ids(i).tolist() == expected, repr(text)
        assert encoding.n_tokens(i) == counts.n_tokens(i) == len(expected)
        n_saved += not passes_quick_check(text)
    return n_saved


@every_nfc_family
def test_random_texts(bench: Bench, shim_cache: Path) -> None:
    """Whatever marks and added tokens stand beside each other, an answer is the reference's."""
    rng, literals = random.Random(3), [token.content for token in bench.spec.added_tokens]
    texts = [random_text(rng, literals) for _ in range(3000 if FULL else 400)]
    assert check(bench, shim_cache, texts) > len(texts) // 20


@every_nfc_family
def test_collected_texts(bench: Bench, shim_cache: Path) -> None:
    """The adversarial collection, and windows of corpora as they are and with everything decomposed."""
    nfd = normalizers.NFD().normalize_str
    windows = [sample.text for sample in corpus_windows(60 if FULL else 4, 300)]
    texts = [s.text for s in adversarial() if not any(0xD800 <= ord(char) < 0xE000 for char in s.text)]
    doubtful = [text for text in [*texts, *windows, *map(nfd, windows)] if not passes_quick_check(text)]
    assert check(bench, shim_cache, doubtful if FULL else doubtful[-150:]) > 0


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
    assert n > 100


def test_added_tokens_must_stay_what_they_are() -> None:
    """A document is left to the CPU where normalization makes, breaks or reaches an added token."""
    rewriter = Rewriter(spec_with("<x>", "é", "<x>é"), NFC)
    assert rewriter.rewrite("e\u0301".encode()) is None  # would become an added token
    assert rewriter.rewrite("<x>\u0338 a".encode()) is None  # would compose with the token's last character
    assert rewriter.rewrite("<x>e\u0301".encode()) is None  # would become a longer one
    assert rewriter.rewrite("a\u0301<x>b\u0301".encode()) is None  # b with a mark: there is no composed form
    assert rewriter.rewrite("a\u0301<x>u\u0301é".encode()) == "á<x>úé".encode()
    assert Rewriter(spec_with(), NFC).rewrite("e\u0301".encode()) == "é".encode()


def test_what_is_not_certain_is_left() -> None:
    """Added tokens with flags, and bytes that are no UTF-8."""
    rewriter = Rewriter(spec_with("<x>", lstrip=True), NFC)
    assert rewriter.rewrite("a\u0301 <x>".encode()) is None
    assert rewriter.rewrite("a\u0301 <y>".encode()) == "á <y>".encode()
    assert rewriter.rewrite(b"a\xcc\x81\xff") is None


def answers(document: bytes) -> list[tuple[int, int]] | int:
    """One id for each byte of text in normal form."""
    return [(byte, i) for i, byte in enumerate(document)] if passes_quick_check(document.decode()) else 3


def test_only_plain_ids_are_tried_again() -> None:
    """Token starts would be those of another text; without normalizer nothing is tried; the rest keeps its place."""
    spec, options = spec_with(), GpuOptions(size_classes_bytes=(64,), token_starts=True)
    documents = [b"one", "e\u0301".encode(), "b\u0301".encode(), b"two", "o\u0301".encode()]
    one = Encoder(spec, HostDevice(answers), options, NFC)
    encoding = one.encode(documents)
    assert encoding.needs_cpu == {2: REASONS[3]}
    found = [bytes(encoding.ids(i).tolist()) for i in range(5)]
    assert found == [b"one", "é".encode(), b"", b"two", "ó".encode()]
    assert set(one.encode(documents, token_starts=True).needs_cpu) == {1, 2, 4}
    assert set(Encoder(spec, HostDevice(answers), options).encode(documents).needs_cpu) == {1, 2, 4}
    encoding.release()
    assert len(one._free[0]) == options.contexts_per_class


def test_several_replays_and_few_contexts() -> None:
    """A batch of several replays is tried again too; with one context left, the call copies what lies in it."""
    spec, options = spec_with(), GpuOptions(size_classes_bytes=(64,), contexts_per_class=2)
    one = Encoder(spec, HostDevice(answers), options, NFC)
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
