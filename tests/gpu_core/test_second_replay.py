"""Second replays in normal form, over contexts in ordinary memory: who gets one, and what it answers."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from gpu_core.doubts import EXPLORED, Doubts
from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import (
    FLAG_DECIMALS,
    FLAG_IDS,
    FLAG_NORMAL_FORM,
    FLAG_TOKEN_STARTS,
    REASON_NOT_NORMAL,
    REASON_TOO_LONG,
    REASONS,
)
from gpu_core.normal_form import passes_quick_check
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from gpu_core.waiting import AdaptiveWait, Poll, Waited
from tests.data import tokenizer_json

SPEC = read_spec(tokenizer_json("split_bpe"))
NOT_NORMAL = REASONS[REASON_NOT_NORMAL]
COMPOSES, LEFT, LONG = "e\u0301", "\u1100\u1161", "Z"
Answer = list[tuple[int, int]] | int


class Certain(Doubts):
    """No text is in normal form."""

    def are_likely(self, n_bytes: int) -> bool:
        """Always."""
        return True


class NotedDoubts(Doubts):
    """Notes what replays said; which text goes into normal form at once is up to the test."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, bool]] = []
        self.likely = False

    def seen(self, n_bytes: int, is_doubtful: bool) -> None:
        """Note it."""
        self.said.append((n_bytes, is_doubtful))

    def are_likely(self, n_bytes: int) -> bool:
        """As the test wants it."""
        return self.likely


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
        self.starts_ns: list[int] = []

    def wait(self, poll: Poll, alive: Callable[[], None], n_bytes: int, launched_ns: int) -> Waited:
        """Wait, and note it."""
        self.sizes.append(n_bytes)
        self.starts_ns.append(launched_ns)
        return super().wait(poll, alive, n_bytes, launched_ns)


def test_waits_are_learned_apart() -> None:
    """How long a second replay takes says nothing of first ones."""
    one, raw, normal = encoder(device()), NotedWait(), NotedWait()
    one._replays._adaptive |= {"raw": raw, "normal": normal}
    for text in ("e", COMPOSES, "two", LEFT):
        one.encode_packed(text.encode(), [0, len(text.encode())]).release()
    assert raw.sizes == [1, 3, 3, 6]
    assert normal.sizes == [3, 6]


@pytest.mark.parametrize("wait", ["adaptive", "spin", "block"])
def test_normal_form_at_once(wait: str) -> None:
    """Without a first replay, but for one in so many: answers, counts and what is left are the same."""
    of = device(doubts=Doubts(), polls=70)
    one = encoder(of, wait=wait)
    texts = ["e\u0301e", LEFT, f"{LONG}{COMPOSES}", "plain"]
    for n in range(40):
        before = of.n_launches
        packed = one.encode_packed("".join(texts).encode(), [0, 4, 10, 14, 19], count_only=n % 3 == 1)
        assert packed.needs_cpu == {1: NOT_NORMAL, 2: REASONS[REASON_TOO_LONG]}
        assert packed.document_tokens.tolist() == [0, 3, 3, 3, 8]
        assert (packed.ids is None) == (n % 3 == 1)
        assert packed.ids is None or bytes(packed.ids.tolist()).decode() == "\u00e9eplain"
        assert of.n_launches - before == (2 if n < 4 or (n - 3) % EXPLORED == 0 else 1)
        packed.release()


def test_what_goes_into_normal_form_at_once() -> None:
    """Neither text of which token starts are asked for nor what is said to be in normal form, nor pieces."""
    context = encoder(device(doubts=Certain())).lease(1, 1).context
    n_bytes = len(COMPOSES.encode())
    context.text[:n_bytes], context.document_starts[:2] = COMPOSES.encode(), (0, n_bytes)
    for flags in (FLAG_IDS | FLAG_TOKEN_STARTS, FLAG_IDS | FLAG_NORMAL_FORM, FLAG_IDS, 0, FLAG_DECIMALS):
        context.launch(n_bytes, 1, flags, False)
        assert context.poll(1)
        assert context.in_normal_form == (flags in (FLAG_IDS, 0, FLAG_DECIMALS))
        assert context.any_flagged() == bool(flags & FLAG_TOKEN_STARTS)
        assert not context.launch_normalized()
    assert bytes(context.decimals[: context.document_decimals[1]]) == b"195,169,"
    context.piece_places()[:1] = 0
    context.launch_pieces(n_bytes, 1, FLAG_IDS)
    assert not context.in_normal_form
    assert not device().context(context.size).in_normal_form


def test_text_that_grows_beyond_its_room_at_once() -> None:
    """Then there is a first replay after all, which nothing follows."""
    of, grows = device(doubts=Certain()), "\u0958"
    texts = [f"plain {'x' * 40}", grows * 30, "y" * 10]
    n_bytes = sum(len(text.encode()) for text in texts)
    packed = encoder(of, size_classes_bytes=(n_bytes,)).encode_packed("".join(texts).encode(), [0, 46, 136, n_bytes])
    assert packed.needs_cpu == {1: NOT_NORMAL}
    assert packed.ids is not None
    assert bytes(packed.ids.tolist()).decode() == texts[0] + texts[2]
    assert of.n_launches == 2


def test_plain_replays_lessen_the_doubts() -> None:
    """A replay that nobody calls doubtful was over text in normal form, unless it went there itself, or over pieces."""
    doubts = NotedDoubts()
    context = encoder(device(doubts=doubts)).lease(1, 1).context
    text = f"{COMPOSES} plain".encode()
    context.text[: len(text)], context.document_starts[:2] = text, (0, 3)
    for n_bytes in (3, 4, 5):
        context.document_starts[1] = n_bytes
        context.launch(n_bytes, 1, FLAG_IDS, False)
        assert context.poll(1)
        if n_bytes == 4:
            assert context.launch_normalized()
            assert context.poll(1)
    context.piece_places()[:1] = 0
    context.launch_pieces(5, 1, FLAG_IDS)
    assert context.poll(1)
    for likely in (True, False):
        doubts.likely = likely
        context.launch(5, 1, FLAG_IDS, False)
        assert context.poll(1)
    assert doubts.said == [(3, False), (4, True)]


@pytest.mark.parametrize("at_once", [True, False])
def test_waits_for_normal_form_are_learned_apart(at_once: bool) -> None:
    """Also where it is reached at once, and from when its launch ended, because that may have taken memory."""
    one, raw, normal = encoder(device(doubts=Certain() if at_once else None)), NotedWait(), NotedWait()
    one._replays._adaptive |= {"raw": raw, "normal": normal}
    context = one.lease(1, 1).context
    slow: Any = context
    name = "launch" if at_once else "launch_normalized"
    launch = getattr(context, name)
    ended_ns: list[int] = []

    def launched(*arguments: Any) -> Any:
        answer = launch(*arguments)
        ended_ns.append(time.perf_counter_ns())
        return answer

    setattr(slow, name, launched)
    for text in (COMPOSES, f"{COMPOSES} two"):
        one.encode_packed(text.encode(), [0, len(text.encode())]).release()
    assert (raw.sizes, normal.sizes) == ([] if at_once else [3, 7], [3, 7])
    assert [start >= end for start, end in zip(normal.starts_ns, ended_ns, strict=True)] == [True, True]
