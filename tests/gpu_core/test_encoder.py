"""The encoder over contexts in ordinary memory: what is handed out, held, cut, refused."""

import importlib.util
import json
import logging
import random
import zlib
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from gpu_core.device import CudaDevice
from gpu_core.encoder import NO_CUT, Encoder
from gpu_core.encoding import Encoding
from gpu_core.errors import DeviceFault, DeviceUnavailable, NoFreeContext
from gpu_core.host_device import HostDevice
from gpu_core.layout import REASONS
from gpu_core.options import GpuOptions
from gpu_core.spec import TokenizerSpec, read_spec
from gpu_core.tables import Tables
from tests.gpu_core.patterns import pre_tokenizer, reference_starts

GPT2 = pre_tokenizer("gpt2")
TOO_LONG = 1
SMALL: dict[str, Any] = {"size_classes_bytes": (64, 256), "token_starts": True}


def spec() -> TokenizerSpec:
    """A tokenizer of the GPT-2 family with one added token."""
    flags = dict.fromkeys(("special", "normalized", "single_word", "lstrip", "rstrip"), False)
    file: dict[str, Any] = {
        "added_tokens": [{"id": 1, "content": "<end of text>", **flags}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }
    return read_spec(json.dumps(file).encode())


def pairs(document: bytes) -> list[tuple[int, int]] | int:
    """One id for each pre-token, from its bytes; a word of 20 letters or more needs the CPU."""
    starts = sorted(reference_starts(GPT2, document.decode())) if document else []
    words = [document[a:b] for a, b in zip(starts, [*starts[1:], len(document)], strict=False)]
    if any(len(word) >= 20 for word in words):
        return TOO_LONG
    return [(zlib.crc32(word) & 0x3FFFF, start) for word, start in zip(words, starts, strict=True)]


def ids_of(document: bytes) -> list[int]:
    """What the encoder should answer."""
    answer = pairs(document)
    return [] if isinstance(answer, int) else [token for token, _start in answer]


def encoder(device: HostDevice | None = None, **options: Any) -> Encoder:
    """An encoder with small classes unless told otherwise."""
    return Encoder(spec(), device or HostDevice(pairs), GpuOptions(**(SMALL | options)))


@pytest.mark.parametrize("wait", ["adaptive", "spin", "block"])
def test_ids_by_document(wait: str) -> None:
    """Every document gets its own ids, in every wait mode, and however late the replay ends."""
    one = encoder(HostDevice(pairs, polls=150), wait=wait)
    documents = [b"it's one", b"", b"two 22", "drei dé".encode()]
    encoding = one.encode(documents)
    assert len(encoding) == 4
    assert [encoding.ids(i).tolist() for i in range(4)] == [ids_of(document) for document in documents]
    assert [encoding.n_tokens(i) for i in range(4)] == [len(ids_of(document)) for document in documents]
    assert encoding.needs_cpu == {}
    assert encoding.times.wait_ns > 0


def test_no_documents() -> None:
    """An empty batch has an empty result."""
    assert len(encoder().encode([])) == 0


def test_buffers_are_documents() -> None:
    """A view of someone's memory is encoded like bytes; many short documents too."""
    words = [f"word {i}".encode() for i in range(20)]
    encoding = encoder().encode([memoryview(word) for word in words])
    assert [encoding.ids(i).tolist() for i in range(20)] == [ids_of(word) for word in words]


def test_ids_are_handed_out_without_a_copy_and_kept() -> None:
    """Ids lie in the context's memory, cannot be written, and are not overwritten while a view of them lives."""
    one = encoder(contexts_per_class=1)
    (context,) = one._free[0]
    ids = one.encode([b"first text"]).ids(0)
    assert np.shares_memory(ids, context.ids)
    assert not ids.flags.writeable
    tail = ids[1:]
    del ids, context
    others = [one.encode([b"second text"]).ids(0).tolist() for _ in range(3)]
    assert others == [ids_of(b"second text")] * 3
    assert tail.tolist() == ids_of(b"first text")[1:]


def test_contexts_come_back() -> None:
    """A result that nobody holds frees its context; with all held, a larger class is taken, and then no more."""
    one = encoder(contexts_per_class=1)
    for _ in range(10):
        one.encode([b"some text"])
    held = [one.encode([b"some text"]) for _ in range(2)]
    with pytest.raises(NoFreeContext):
        one.encode([b"some text"])
    held[0].release()
    assert one.encode([b"more"]).ids(0).tolist() == ids_of(b"more")
    held.clear()
    assert [len(free) for free in one._free] == [1, 1]


def test_counting_holds_nothing() -> None:
    """Counts need no ids, and no context once they are known."""
    one = encoder(contexts_per_class=1)
    encodings = [one.encode([b"one two", b"three"], count_only=True) for _ in range(5)]
    assert [encoding.n_tokens(0) for encoding in encodings] == [2] * 5
    with pytest.raises(ValueError, match="asked for"):
        encodings[0].ids(0)


def test_token_starts_count_from_the_document() -> None:
    """Token starts are positions in their own document, not in the batch."""
    encoding = encoder().encode([b"one two", b"three  four"], token_starts=True)
    assert encoding.token_starts(0).tolist() == [0, 3]
    assert encoding.token_starts(1).tolist() == [0, 5, 6]
    with pytest.raises(ValueError, match="asked for"):
        encoder().encode([b"a"]).token_starts(0)
    with pytest.raises(ValueError, match="token_starts"):
        encoder(token_starts=False).encode([b"a"], token_starts=True)


def test_documents_for_the_cpu_are_named() -> None:
    """A document that the device refuses is named with a reason; the others keep their ids."""
    documents = [b"good", b"b" + b"a" * 30 + b"d", b"fine too"]
    encoding = encoder().encode(documents)
    assert encoding.needs_cpu == {1: REASONS[TOO_LONG]}
    assert encoding.n_tokens(1) == 0
    assert encoding.ids(1).tolist() == []
    assert [encoding.ids(i).tolist() for i in (0, 2)] == [ids_of(documents[i]) for i in (0, 2)]


def test_large_batches_take_several_replays() -> None:
    """Whatever the sizes, all ids and token starts are those of the whole documents; contexts come back."""
    rng, one = random.Random(1), encoder()
    for _ in range(60):
        documents = [_words(rng, rng.choice((0, 3, 40, 200, 900))) for _ in range(rng.randrange(1, 9))]
        encoding = one.encode(documents, token_starts=True)
        assert encoding.needs_cpu == {}
        for i, document in enumerate(documents):
            expected = pairs(document)
            assert isinstance(expected, list)
            assert encoding.ids(i).tolist() == [token for token, _start in expected]
            assert encoding.token_starts(i).tolist() == [start for _token, start in expected]
            assert encoding.n_tokens(i) == len(expected)
        del encoding
        assert [len(free) for free in one._free] == [2, 2]


def test_an_uncut_document_needs_the_cpu() -> None:
    """A long document without a safe cut goes to the CPU as a whole; so does one with a piece that is refused."""
    refused = _words(random.Random(2), 300) + b" " + b"x" * 40 + b" end"
    encoding = encoder().encode([b"a" * 400, b"fine", refused])
    assert encoding.needs_cpu == {0: NO_CUT, 2: REASONS[TOO_LONG]}
    assert encoding.ids(1).tolist() == ids_of(b"fine")


def test_held_contexts_do_not_stop_a_large_batch() -> None:
    """With one context left, each replay of a large batch gives it to the next one."""
    one = encoder(contexts_per_class=1)
    text = _words(random.Random(4), 2000)
    assert one.encode([text]).ids(0).tolist() == ids_of(text)
    keep = one.encode([b"x" * 9 + b" y" * 100])
    with pytest.raises(NoFreeContext):
        one.encode([text])
    assert keep.n_tokens(0) == 101


def test_a_leased_context_is_filled_in_place() -> None:
    """Text can be received into the context's memory and encoded there."""
    one = encoder()
    lease = one.lease(7, 1)
    lease.context.text[:7] = b"one two"
    lease.context.document_starts[:2] = (0, 7)
    assert one.replay(lease, 7, 1).ids(0).tolist() == ids_of(b"one two")


def test_resident_results() -> None:
    """Results that stay on the device are arrays with DLPack; the host's arrays are not written."""
    one = encoder(contexts_per_class=1)
    (context,) = one._free[0]
    resident = one.encode_resident([b"one two", b"three"], token_starts=True)
    assert np.from_dlpack(resident.ids).tolist() == ids_of(b"one two") + ids_of(b"three")
    assert resident.document_tokens.tolist() == [0, 2, 3]
    assert resident.token_starts.tolist() == [0, 3, 7]
    assert (resident.n_tokens, resident.needs_cpu) == (3, {})
    assert (context.ids == 0xDEADBEEF).all()
    assert len(one._free[0]) == 0
    resident.release()
    assert len(one._free[0]) == 1
    with pytest.raises(ValueError, match="one replay"):
        one.encode_resident([b"a " * 200])


def test_little_memory_means_fewer_classes(caplog: pytest.LogCaptureFixture) -> None:
    """Classes without memory are left out with a warning; with memory for none there is no encoder."""
    small, large = (size.device_bytes(True) for size in encoder().ladder.classes)
    with caplog.at_level(logging.WARNING, "sidetok.gpu"):
        one = encoder(HostDevice(pairs, memory_bytes=large + 2 * small))
    assert [len(free) for free in one._free] == [2, 1]
    assert "only 1 contexts of 256 bytes" in caplog.text
    text = _words(random.Random(7), 600)
    tiny = encoder(HostDevice(pairs, memory_bytes=small + large - 1))
    assert [size.capacity for size in tiny.ladder.classes] == [64]
    assert tiny.encode([text]).ids(0).tolist() == ids_of(text)
    with pytest.raises(DeviceUnavailable):
        encoder(HostDevice(pairs, memory_bytes=small - 1))


def test_memory_budget(caplog: pytest.LogCaptureFixture) -> None:
    """A budget leaves the largest classes out, with a warning."""
    small, _large = (size.device_bytes(True) for size in encoder().ladder.classes)
    with caplog.at_level(logging.WARNING, "sidetok.gpu"):
        assert [size.capacity for size in encoder(memory_budget_bytes=2 * small).ladder.classes] == [64]
    assert "for 1 of 2 size classes" in caplog.text


@pytest.mark.parametrize("wait", ["adaptive", "block"])
def test_a_dead_device(wait: str) -> None:
    """A device that fails ends the call with a fault, in every wait mode."""
    one = encoder(HostDevice(pairs, fail_after=1), wait=wait)
    assert one.encode([b"alive"]).n_tokens(0) == 1
    with pytest.raises(DeviceFault, match="dead"):
        one.encode([b"dead"])


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_the_device_is_unavailable() -> None:
    """Where CuPy is not installed, the answer says how to get it."""
    with pytest.raises(DeviceUnavailable, match="cuda13"):
        CudaDevice(Tables({}, {}, {}), GpuOptions())


def _words(rng: random.Random, n_bytes: int) -> bytes:
    """Random text that can be cut often enough."""
    words = ("one", " two", " it's", "\n", "  ", " 123", " dé", " 你好", "<end of text>", ".", " long-ish")
    text = b""
    while len(text) < n_bytes:
        text += rng.choice(words).encode()
    return text


def test_packed_documents() -> None:
    """One text with borders gives the ids of the documents between them, in arrays that keep the context."""
    one = encoder()
    documents = [b"it's one", b"", b"x" * 30, b"drei"]
    packed = one.encode_packed(b"".join(documents), np.cumsum([0, *map(len, documents)]))
    tokens = packed.document_tokens
    assert packed.ids is not None
    assert [packed.ids[tokens[i] : tokens[i + 1]].tolist() for i in (0, 1, 3)] == [
        ids_of(documents[i]) for i in (0, 1, 3)
    ]
    assert packed.needs_cpu == {2: REASONS[TOO_LONG]}
    assert len(one._free[0]) == 1
    packed.release()
    assert len(one._free[0]) == 2
    counted = one.encode_packed(b"two words", [0, 9], count_only=True)
    assert (counted.ids, counted.document_tokens.tolist()) == (None, [0, 2])
    with pytest.raises(ValueError, match="largest size class"):
        one.encode_packed(b"x" * 300, [0, 300])


def test_decimals() -> None:
    """Ids of each document as decimal numbers; none that was not asked for, needs the CPU, or has no room."""
    one = encoder()
    documents = [b"it's one", b"", b"x" * 30, b"two 22"]

    def replay(texts: list[bytes], **options: bool) -> Encoding:
        lease = one.lease(sum(map(len, texts)), len(texts))
        lease.context.text[: sum(map(len, texts))] = b"".join(texts)
        lease.context.document_starts[: len(texts) + 1] = [0, *accumulate(map(len, texts))]
        return one.replay(lease, sum(map(len, texts)), len(texts), **options)

    expected = [json.dumps(ids_of(document), separators=(",", ":"))[1:-1] for document in documents]
    encoding = replay(documents, decimals=True)
    found = [encoding.decimals(document) for document in range(4)]
    assert [text if text is None else bytes(text).decode() for text in found] == [*expected[:2], None, expected[3]]
    assert encoding.ids(3).tolist() == ids_of(documents[3])
    encoding.detach()
    one.encode([b"something else"])
    assert bytes(encoding.decimals(0) or b"").decode() == expected[0]
    assert replay(documents).decimals(0) is None
    full = [b"a " * 8, b"1 " * 24]
    crowded = replay(full, decimals=True)
    assert bytes(crowded.decimals(0) or b"").decode() == json.dumps(ids_of(full[0]), separators=(",", ":"))[1:-1]
    assert crowded.decimals(1) is None
    assert crowded.ids(1).tolist() == ids_of(full[1])
