"""Second replays in normal form, over contexts in ordinary memory: who gets one, and what it answers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import FLAG_IDS, FLAG_NORMAL_FORM, FLAG_TOKEN_STARTS, REASON_NOT_NORMAL, REASON_TOO_LONG, REASONS
from gpu_core.normal_form import passes_quick_check
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from gpu_core.waiting import AdaptiveWait, Poll, Waited
from tests.data import tokenizer_json

SPEC = read_spec(tokenizer_json("split_bpe"))
NOT_NORMAL = REASONS[REASON_NOT_NORMAL]
COMPOSES, LEFT, LONG = "e\u0301", "\u1100\u1161", "Z"
Answer = list[tuple[int, int]] | int


def answers(document: bytes) -> Answer:
    """One id for each byte of text that passes the quick check."""
    return normal_answers(document) if passes_quick_check(document.decode()) else REASON_NOT_NORMAL


def normal_answers(document: bytes) -> Answer:
    """One id for each byte; a pre-token that is too long in texts with a Z."""
    return REASON_TOO_LONG if LONG.encode() in document else [(byte, i) for i, byte in enumerate(document)]


def normal_form(document: bytes) -> bytes | None:
    """NFC of what has no Hangul jamo in it."""
    text = document.decode()
    return None if LEFT[0] in text else unicodedata.normalize("NFC", text).encode()


def device(**more: Any) -> HostDevice:
    """One that brings text into normal form."""
    return HostDevice(answers, encode_normal=normal_answers, normalize=normal_form, **more)


def encoder(of: HostDevice, **options: Any) -> Encoder:
    """Over a device, with one small class."""
    defaults: dict[str, Any] = {"size_classes_bytes": (4096,), "token_starts": True}
    return Encoder(SPEC, of, GpuOptions(**defaults | options))


def expected(text: str) -> bytes:
    """One id for each byte of the normal form."""
    return unicodedata.normalize("NFC", text).encode()


@pytest.mark.parametrize("wait", ["adaptive", "spin", "block"])
def test_one_of_many_documents(wait: str) -> None:
    """All documents of the batch are answered anew, in place; nothing is left, and nothing is rewritten on the host."""
    of = device(polls=70)
    one = encoder(of, wait=wait)
    texts = [f"{i} words" if i != 31 else f"caf{COMPOSES} {i}" for i in range(50)]
    for flagged in (True, False):
        encoding = one.encode([text.encode() for text in texts])
        assert encoding.needs_cpu == {}
        assert [bytes(encoding.ids(i).tolist()) for i in range(50)] == list(map(expected, texts))
        assert of.n_launches == (2 if flagged else 3)
        texts[31] = "31 words"
        encoding.release()


def test_what_the_device_leaves() -> None:
    """The host rewrites what a second replay leaves; other reasons stay what they are."""
    of = device()
    texts = ["one", LEFT, f"{LONG}{COMPOSES}", f"{COMPOSES} two", LONG]
    encoding = encoder(of).encode([text.encode() for text in texts])
    assert encoding.needs_cpu == {2: REASONS[REASON_TOO_LONG], 4: REASONS[REASON_TOO_LONG]}
    assert [bytes(encoding.ids(i).tolist()) for i in (0, 1, 3)] == [expected(texts[i]) for i in (0, 1, 3)]
    assert of.n_launches == 3


def test_counts() -> None:
    """Those of the second replay."""
    encoding = encoder(device()).encode([COMPOSES.encode(), b"two"], count_only=True)
    assert [encoding.n_tokens(i) for i in range(2)] == [2, 3]


def test_packed_documents() -> None:
    """Arrays in, arrays out: what is left has its reason."""
    text = f"one {COMPOSES}".encode()
    packed = encoder(device()).encode_packed(text + LEFT.encode(), [0, 3, len(text), len(text) + 6])
    assert packed.needs_cpu == {2: NOT_NORMAL}
    assert packed.ids is not None
    assert bytes(packed.ids[: packed.document_tokens[2]].tolist()) == "one é".encode()


def test_resident_results() -> None:
    """They stay on the device, of the second replay, too."""
    resident = encoder(device()).encode_resident([b"one", COMPOSES.encode()])
    assert (resident.needs_cpu, resident.n_tokens) == ({}, 5)
    assert bytes(resident.ids.tolist()) == "oneé".encode()
    assert resident.document_tokens.tolist() == [0, 3, 5]


def test_decimal_numbers() -> None:
    """They are those of the ids that the second replay gave."""
    one, text = encoder(device()), f"a{COMPOSES}".encode()
    lease = one.lease(len(text), 1)
    lease.context.text[: len(text)], lease.context.document_starts[:2] = text, (0, len(text))
    encoding = one.replay(lease, len(text), 1, decimals=True)
    decimals = encoding.decimals(0)
    assert decimals is not None
    assert bytes(decimals) == ",".join(map(str, "aé".encode())).encode()
    assert encoding.ids(0).tolist() == list("aé".encode())


def test_several_replays() -> None:
    """Each of those that one call takes is followed by its own."""
    of = device()
    texts = [f"{i} {COMPOSES if i % 2 else 'e'} ".replace(" ", " " * 9) * 7 for i in range(8)]
    encoding = encoder(of, size_classes_bytes=(256,)).encode([text.encode() for text in texts])
    assert encoding.needs_cpu == {}
    assert [bytes(encoding.ids(i).tolist()) for i in range(8)] == list(map(expected, texts))
    assert of.n_launches == 12


def test_no_second_replay() -> None:
    """Of token starts, which would be those of another text, and where the device does not bring text into form."""
    of = device()
    assert encoder(of).encode([COMPOSES.encode()], token_starts=True).needs_cpu == {0: NOT_NORMAL}
    assert of.n_launches == 1
    plain = HostDevice(answers, encode_normal=normal_answers)
    assert encoder(plain).encode_packed(COMPOSES.encode(), [0, 3]).needs_cpu == {0: NOT_NORMAL}
    assert plain.n_launches == 1


def test_when_a_context_goes_on() -> None:
    """Only behind a replay that is complete, has left documents for this reason, and was not a second one itself."""
    context = encoder(device()).lease(1, 1).context
    assert not context.launch_normalized()
    cases = [
        ("plain", FLAG_IDS, False),
        (COMPOSES, FLAG_IDS, True),
        (COMPOSES, 0, True),
        (COMPOSES, FLAG_IDS | FLAG_TOKEN_STARTS, False),
        (COMPOSES, FLAG_IDS | FLAG_NORMAL_FORM, False),
        (LONG, FLAG_IDS, False),
        (LEFT, FLAG_IDS, True),
    ]
    for text, flags, goes_on in cases:
        n_bytes = len(text.encode())
        context.text[:n_bytes], context.document_starts[:2] = text.encode(), (0, n_bytes)
        context.launch(n_bytes, 1, flags, False)
        assert context.poll(1)
        assert context.launch_normalized() == goes_on
        assert context.poll(1)
        assert context.any_flagged() == (text in {LONG, LEFT} or bool(flags & FLAG_TOKEN_STARTS))
        assert not context.launch_normalized()


def test_text_that_grows_beyond_its_room() -> None:
    """The answers of the first replay are given once more, so that only what it left needs the CPU."""
    of, grows = device(), "\u0958"
    texts = [f"plain {'x' * 40}", grows * 30, "y" * 10]
    n_bytes = sum(len(text.encode()) for text in texts)
    one = encoder(of, size_classes_bytes=(n_bytes,))
    packed = one.encode_packed("".join(texts).encode(), [0, 46, 136, n_bytes])
    assert packed.needs_cpu == {1: NOT_NORMAL}
    assert packed.ids is not None
    assert bytes(packed.ids.tolist()).decode() == texts[0] + texts[2]
    assert of.n_launches == 3


class NotedWait(AdaptiveWait):
    """Notes what was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def wait(self, poll: Poll, alive: Callable[[], None], n_bytes: int, launched_ns: int) -> Waited:
        """Wait, and note it."""
        self.sizes.append(n_bytes)
        return super().wait(poll, alive, n_bytes, launched_ns)


def test_waits_are_learned_apart() -> None:
    """How long a second replay takes says nothing of first ones."""
    one, first, second = encoder(device()), NotedWait(), NotedWait()
    one._replays._adaptive |= {"first": first, "second": second}
    for text in ("e", COMPOSES, "two", LEFT):
        one.encode_packed(text.encode(), [0, len(text.encode())]).release()
    assert first.sizes == [1, 3, 3, 6]
    assert second.sizes == [3, 6]
