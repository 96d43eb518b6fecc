"""The shadow check: what it compares, what it counts, and that it never gets in the way."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

import pytest

from dispatcher.errors import ModelAway
from dispatcher.meter import ThreadClocks
from dispatcher.request import EncodedDocument, EncodeOptions, EncodeRequest
from dispatcher.shadow import MAX_CHARS, MAX_WAITING, ShadowCheck
from tests.engine_rig import added, holdings
from tests.fakes import LIMIT_S, FakeTokenizer, Gate, Panic

MARKER = "the secret text of a document"


class JudgedTokenizer(FakeTokenizer):
    """A tokenizer whose reference can be held up, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.judge_gate: Gate | None = None
        self.judge_error: BaseException | None = None

    def reference_encode(self, document: str, options: EncodeOptions) -> EncodedDocument:
        """See `Tokenizer`."""
        if threading.current_thread().name == "sidetok-shadow":
            if self.judge_gate is not None:
                self.judge_gate.go_through()
            if self.judge_error is not None:
                raise self.judge_error
        return super().reference_encode(document, options)


def encoded(tokenizer: FakeTokenizer, *documents: str) -> tuple[EncodeRequest, list[EncodedDocument]]:
    """A request and its result."""
    request = EncodeRequest("fake", tokenizer, list(documents), EncodeOptions())
    return request, tokenizer.encode(request.documents, request.options)


def until(happened: Callable[[], bool]) -> None:
    """Wait for the thread of the check."""
    for _ in range(int(LIMIT_S / 0.0005)):
        if happened():
            return
        threading.Event().wait(0.0005)
    raise AssertionError("what the test waits for did not happen")


def counted(check: ShadowCheck) -> int:
    """Documents that the check is done with."""
    return sum(c.n_equal + c.n_mismatched + c.n_failed for c in dict(check.counts).values())


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_the_fraction_is_checked(fraction: float) -> None:
    """A fraction is from 0 to 1; the error names the flag."""
    with pytest.raises(ValueError, match="--shadow-check"):
        ShadowCheck(fraction, ThreadClocks())


def test_zero_costs_nothing() -> None:
    """Without a fraction there is no thread."""
    before = holdings()
    check = ShadowCheck(0.0, ThreadClocks())
    assert added(before) == []
    check.close()


def test_every_document_is_compared_at_fraction_one(caplog: pytest.LogCaptureFixture) -> None:
    """Equal and different answers are counted by model; a difference is logged with sizes, never with text."""
    tokenizer = JudgedTokenizer()
    tokenizer.wrong.add(MARKER)
    clocks = ThreadClocks()
    check = ShadowCheck(1.0, clocks)
    check.sample(*encoded(tokenizer, "a", MARKER, "b"))
    until(lambda: counted(check) == 3)
    counts = check.counts["fake"]
    assert (counts.n_equal, counts.n_mismatched, counts.n_dropped, counts.n_failed) == (2, 1, 0, 0)
    (record,) = [record for record in caplog.records if record.name == "sidetok.shadow"]
    assert record.levelno == logging.ERROR
    assert MARKER not in str(vars(record))
    assert vars(record)["expected_n_tokens"] == len(MARKER)
    assert clocks.snapshot()["shadow_check"] > 0
    check.close()


def test_a_fraction_is_a_fraction() -> None:
    """About that part of the documents is offered, the same ones for the same seed."""
    tokenizer = JudgedTokenizer()
    check = ShadowCheck(0.25, ThreadClocks(), seed=1)
    request, result = encoded(tokenizer, "a")
    for n in range(1, 2001):
        check.sample(request, result)
        if n % 50 == 0:
            until(lambda: check._queue.empty())
    until(lambda: check._queue.empty())
    check.close()
    counts = check.counts["fake"]
    assert 400 < counts.n_equal + counts.n_dropped < 600
    assert counts.n_dropped == 0


def test_more_than_can_wait_is_dropped_and_counted() -> None:
    """A slow reference never makes the caller wait, nor much text pile up."""
    tokenizer = JudgedTokenizer()
    tokenizer.judge_gate = gate = Gate()
    check = ShadowCheck(1.0, ThreadClocks())
    request, result = encoded(tokenizer, "a")
    check.sample(request, result)
    gate.wait_entered()
    for _ in range(MAX_WAITING + 7):
        check.sample(request, result)
    assert check.counts["fake"].n_dropped == 7
    gate.open()
    until(lambda: counted(check) == MAX_WAITING + 1)
    check.close()


def test_long_documents_are_dropped_and_counted() -> None:
    """A document that the reference would need hundreds of megabytes for is not checked."""
    tokenizer = FakeTokenizer()
    check = ShadowCheck(1.0, ThreadClocks())
    request = EncodeRequest("fake", tokenizer, ["x" * (MAX_CHARS + 1), "x"], EncodeOptions())
    check.sample(request, [EncodedDocument(b"", 0), *tokenizer.encode(["x"], EncodeOptions())])
    until(lambda: counted(check) == 1)
    assert (check.counts["fake"].n_dropped, check.counts["fake"].n_equal) == (1, 1)
    check.close()


def test_other_documents_of_a_request_are_let_go() -> None:
    """What waits, and what was checked, holds one document and not its whole batch."""
    tokenizer = JudgedTokenizer()
    tokenizer.judge_gate = gate = Gate()
    check = ShadowCheck(1.0, ThreadClocks())
    check.sample(*encoded(tokenizer, "held up"))
    gate.wait_entered()
    request, result = encoded(tokenizer, "one", "two")
    held_before = sys.getrefcount(request), sys.getrefcount(result[-1])
    check.sample(request, result)
    assert sys.getrefcount(request) == held_before[0]
    gate.open()
    until(lambda: counted(check) == 3 and sys.getrefcount(result[-1]) == held_before[1])
    check.close()


@pytest.mark.parametrize("error", [ValueError(MARKER), Panic(MARKER)], ids=["exception", "panic"])
def test_a_failing_reference_is_counted(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A reference that fails, or panics, is counted and logged without text; the check goes on."""
    tokenizer = JudgedTokenizer()
    tokenizer.judge_error = error
    check = ShadowCheck(1.0, ThreadClocks())
    check.sample(*encoded(tokenizer, "a"))
    until(lambda: counted(check) == 1)
    tokenizer.judge_error = None
    check.sample(*encoded(tokenizer, "b"))
    until(lambda: counted(check) == 2)
    assert (check.counts["fake"].n_failed, check.counts["fake"].n_equal) == (1, 1)
    assert MARKER not in caplog.text
    check.close()


def test_close_drops_what_waits() -> None:
    """`close` waits for the document at hand only."""
    tokenizer = JudgedTokenizer()
    tokenizer.judge_gate = gate = Gate()
    check = ShadowCheck(1.0, ThreadClocks())
    request, result = encoded(tokenizer, "a")
    for _ in range(MAX_WAITING):
        check.sample(request, result)
    gate.wait_entered()
    closer = threading.Thread(target=check.close)
    closer.start()
    until(lambda: check._closing)
    gate.open()
    closer.join(LIMIT_S)
    assert not closer.is_alive()
    assert counted(check) < MAX_WAITING


def test_a_model_that_is_away_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """While its process is started again, documents are dropped, and nothing is logged for each of them."""
    tokenizer = JudgedTokenizer()
    tokenizer.judge_error = ModelAway("It is started again.")
    check = ShadowCheck(1.0, ThreadClocks())
    check.sample(*encoded(tokenizer, "a"))
    until(lambda: "fake" in check.counts and check.counts["fake"].n_dropped == 1)
    tokenizer.judge_error = None
    check.sample(*encoded(tokenizer, "b"))
    until(lambda: counted(check) == 1)
    assert (check.counts["fake"].n_failed, check.counts["fake"].n_equal) == (0, 1)
    assert not any(record.name == "sidetok.shadow" for record in caplog.records)
    check.close()
