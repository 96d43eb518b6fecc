"""Long documents in two halves: the same results as ever, from two threads, and only while a CPU would idle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.costs import ASCII, MIXED, WIDE
from dispatcher.cpus import Runnable
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.errors import InvalidText
from dispatcher.halves import MIN_CHARS, SLOW_NS, Halves, Share
from dispatcher.pieces import HALF_WINDOW, Cutter
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer
from gpu_core.spec import read_spec
from tests.data import EMBEDDED, corpus_windows, tokenizer_json
from tests.dispatcher.crew import Crew
from tests.fakes import LIMIT_S

LONG = "Some words of a text, the 2nd of them: 12345 and more. " * (MIN_CHARS // 50)
IDS_ONLY = EncodeOptions(add_special_tokens=False)


class PanicException(BaseException):
    """What native engines raise."""


class Rig:
    """Halves beside three sleeping workers; the caller stands for the fourth."""

    def __init__(self) -> None:
        self.crew = Crew(3)
        self.n_runnable = 1
        self.halves = Halves(self.crew.queue, 4, 2, lambda: self.n_runnable)

    def helped(self, tokenizer: Tokenizer, options: EncodeOptions = IDS_ONLY, text: str = LONG) -> bool:
        """Whether a text that is known to be slow was encoded by two; its result is the usual one."""
        self.halves._seen[tokenizer] = {kind: SLOW_NS / MIN_CHARS for kind in (ASCII, MIXED, WIDE)}
        result, helped_ns = self.halves.encode(tokenizer, text, options)
        assert [result] == tokenizer.encode([text], options)
        return helped_ns > 0


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Somebody who may help."""
    rig = Rig()
    yield rig
    rig.halves.close()
    rig.crew.stop()


def test_the_halves_of_real_text_have_its_ids() -> None:
    """Whatever stands in the middle, both halves together are the text, and their ids its ids."""
    data = tokenizer_json(EMBEDDED)
    reference, cutter = ReferenceEngine(data.decode()), Cutter(read_spec(data), 1 << 20)
    n_cut = 0
    for sample in corpus_windows(8, 12 * HALF_WINDOW):
        halves = cutter.halves(sample.text)
        if halves is not None:
            n_cut += 1
            assert "".join(halves) == sample.text
            assert abs(len(halves[0]) - len(halves[1])) <= 2 * HALF_WINDOW
            assert b"".join(map(reference.encode, halves)) == reference.encode(sample.text)
    assert n_cut


@pytest.mark.parametrize("literal", ["<|im_end|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"])
@pytest.mark.parametrize("shift", range(0, 24, 3))
def test_no_added_token_is_cut(embedded: Tokenizer, literal: str, shift: int) -> None:
    """A text that is full of added tokens is cut between them, wherever its middle is."""
    text = ("ab" + literal) * (2 * HALF_WINDOW) + "x" * shift
    halves = embedded.halves(text)
    assert halves is not None
    whole, first, second = (embedded.encode([part], IDS_ONLY)[0].ids for part in (text, *halves))
    assert first + second == whole


def test_what_has_no_halves(embedded: Tokenizer) -> None:
    """A short text, one without a cut near its middle, one with a lone surrogate, and text for the reference."""
    assert embedded.halves("a " * HALF_WINDOW) is None
    assert embedded.halves("!" * MIN_CHARS) is None
    assert embedded.halves("a b" * MIN_CHARS + "\ud800" + "a b" * MIN_CHARS) is None
    assert embedded.halves("it'\u017f " * MIN_CHARS) is None


@pytest.fixture
def both(embedded: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> dict[bool, int]:
    """Makes each half wait until the other one was begun; the threads that encoded the first one, and the other."""
    threads: dict[bool, int] = {}
    barrier, encode = threading.Barrier(2), embedded.half_ids

    def half_ids(half: str) -> bytes:
        threads[LONG.startswith(half)] = threading.get_ident()
        barrier.wait(LIMIT_S)
        return encode(half)

    monkeypatch.setattr(embedded, "half_ids", half_ids)
    return threads


@pytest.mark.parametrize(
    "options", [IDS_ONLY, EncodeOptions(), EncodeOptions(max_tokens=77), EncodeOptions(count_only=True)]
)
def test_two_threads_give_one_result(
    rig: Rig, embedded: Tokenizer, both: dict[bool, int], options: EncodeOptions
) -> None:
    """Special tokens, truncation and counts are the same; one document is counted, and the helper's CPU time told."""
    for _ in range(2):
        before = embedded.counters().documents[embedded.engine]
        assert rig.helped(embedded, options)
        assert embedded.counters().documents[embedded.engine] == before + 2
        assert both[True] == threading.get_ident() != both[False]


def test_only_while_a_cpu_would_idle(rig: Rig, embedded: Tokenizer, both: dict[bool, int]) -> None:
    """Not beside jobs that run or wait, not on a busy host, not on one CPU, not after the end."""
    assert rig.helped(embedded)
    rig.n_runnable = 2
    assert not rig.helped(embedded)
    rig.n_runnable = 1
    rig.crew.put(rig.crew.job())
    hand = rig.crew.woken()
    assert not rig.helped(embedded)
    hand.round()
    rig.crew.park(hand)
    assert rig.helped(embedded)
    assert not rig.helped(embedded, text=LONG[: MIN_CHARS - 1])
    assert not rig.helped(embedded, EncodeOptions(token_strings=True), LONG[:MIN_CHARS])
    rig.halves.close()
    assert not rig.helped(embedded)
    rig.halves = Halves(rig.crew.queue, 4, 1, lambda: 0)
    assert not rig.helped(embedded)


def test_what_is_fast_stays_whole(rig: Rig, embedded: Tokenizer, both: dict[bool, int]) -> None:
    """What a character takes is learned from the documents, by their kind; the first one of a kind stays whole."""
    assert rig.halves.encode(embedded, LONG, IDS_ONLY)[1] == 0
    (kind,) = rig.halves._seen[embedded]
    for _ in range(3):
        rig.halves._seen[embedded][kind] = 0.0
        assert rig.halves.encode(embedded, LONG, IDS_ONLY)[1] == 0
        assert rig.halves._seen[embedded][kind] > 0.0
    rig.halves._seen[embedded][kind] = 1e6
    assert rig.halves.encode(embedded, LONG, IDS_ONLY)[1] > 0
    assert 0.0 < rig.halves._seen[embedded][kind] < 1e6


@pytest.mark.parametrize("fails", [0, 1])
def test_an_engine_that_fails(rig: Rig, embedded: Tokenizer, monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    """Whichever half it is, the whole document goes the usual way."""
    encode = embedded.half_ids

    def half_ids(half: str) -> bytes:
        if LONG.startswith(half) == (fails == 0):
            raise PanicException
        return encode(half)

    monkeypatch.setattr(embedded, "half_ids", half_ids)
    assert not rig.helped(embedded)


def test_a_lone_surrogate_far_from_the_middle(rig: Rig, embedded: Tokenizer) -> None:
    """It is no text: the usual way says so."""
    rig.halves._seen[embedded] = dict.fromkeys((ASCII, MIXED, WIDE), 1e6)
    with pytest.raises(InvalidText):
        rig.halves.encode(embedded, "\ud800" + LONG, IDS_ONLY)


def test_a_share_that_nobody_began() -> None:
    """Who wants its ids encodes it; who comes later has nothing to do."""
    share = Share(str.encode, "half")
    assert share.ids() == b"half"
    assert not share.begin()
    assert share.ids() == b"half"


def test_threads_that_want_to_run(tmp_path: Path) -> None:
    """The caller is one of them; without the file nobody knows, and nobody is taken to be idle."""
    assert 1 <= Runnable().count() < sys.maxsize
    load = tmp_path / "loadavg"
    load.write_text("0.10 0.20 0.30 7/321 4711\n")
    runnable = Runnable(load)
    assert runnable.count() == 7
    load.write_text("0.10 0.20 0.30 12/321 4711\n")
    assert runnable.count() == 12
    load.write_text("")
    assert runnable.count() == Runnable(tmp_path / "none").count() == sys.maxsize
