"""The dispatcher: every job ends once, whatever happens to it, and its slot comes back."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from dispatcher import dispatcher as dispatcher_module
from dispatcher.errors import DeadlineExceeded, EngineFault, InvalidText, TooBusy
from dispatcher.job import Job
from dispatcher.request import EncodeOptions
from gpu_core.errors import SidetokError
from tests.dispatcher.crew import until
from tests.fakes import LIMIT_S, DecodeJob, FakeJob, FakeTokenizer, Gate, Panic, PanicException, submit
from tests.rig import LONG, Rig, ids

MARKER = "the secret text of a document"


def test_a_job_is_answered(rig: Rig) -> None:
    """The answer of a job is what `write` made of the result; its slot comes back."""
    job = rig.submit("abc")
    rig.finish(job)
    assert job.ending.answer == [ids("abc")]
    assert job.ending.error is None
    assert job.model == "fake"
    rig.settle()


def test_on_done_runs_on_the_loop_and_work_off_it(rig: Rig) -> None:
    """`read` and encoding run on workers; nothing is told before the loop turns."""
    job = rig.submit("abc")
    until(lambda: rig.loop.n_wakes > 0)
    assert not job.ended
    assert threading.get_ident() not in {*job.read_threads, *rig.tokenizer.threads}
    rig.loop.run_ready()
    assert job.ended


def test_batches_decodes_and_empty_batches(rig: Rig) -> None:
    """A job has as many results as documents, also none; decode goes the same way."""
    batch, empty = rig.submit("a", "", "bc"), rig.submit()
    decode = DecodeJob(rig.tokenizer, "xyz", "", slot=rig.dispatcher.admission.admit(3))
    rig.dispatcher.submit(decode)
    long = rig.submit("a", "bc", body_bytes=LONG)
    rig.finish(batch, empty, decode, long)
    assert batch.ending.answer == [ids("a"), [], ids("bc")]
    assert empty.ending.answer == []
    assert decode.ending.answer == ["xyz", ""]
    assert long.ending.answer == [ids("a"), ids("bc")]


def test_jobs_of_one_turn_of_the_loop_are_queued_together() -> None:
    """With `soon`, submitted jobs are queued when the loop gets to it, and are in flight before that."""
    rig = Rig(deferred=True)
    jobs = [rig.submit(c) for c in "abc"]
    assert rig.dispatcher.n_in_flight == 3
    assert rig.loop.n_wakes == 1
    dropped = rig.submit("d")
    rig.dispatcher.cancel(dropped)
    rig.finish(*jobs)
    rig.settle()
    assert not dropped.ended
    assert sorted(rig.tokenizer.seen) == ["a", "b", "c"]
    rig.close()


def test_finished_jobs_wake_the_loop_once(lone: Rig) -> None:
    """All that finish before the loop looks cost one wake-up."""
    held = lone.submit("hold")
    gate = lone.tokenizer.gate("never")
    lone.finish(held)
    n_before = lone.loop.n_wakes
    jobs = [lone.submit(str(i), body_bytes=LONG) for i in range(5)]
    last = lone.submit("never")
    gate.wait_entered()
    assert lone.loop.n_wakes == n_before + 1
    lone.loop.run_ready()
    assert all(job.ended for job in jobs)
    gate.open()
    lone.finish(last)


@pytest.mark.parametrize("error", [InvalidText("bad text"), TooBusy("full", "x"), DeadlineExceeded("late")])
def test_errors_of_ours_are_told_as_they_are(rig: Rig, error: Exception) -> None:
    """An error that sidetok raises on purpose reaches `fail` unchanged."""
    rig.tokenizer.errors["bad"] = error
    job = rig.submit("bad")
    rig.finish(job)
    assert job.ending.error is error
    assert job.ending.answer == type(error).__name__


@pytest.mark.parametrize(
    "error",
    [ValueError(MARKER), Panic(MARKER), PanicException(MARKER), SystemExit(MARKER), MemoryError(), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_foreign_errors_become_an_engine_fault(
    lone: Rig, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Anything else, panics included, is our fault; it is logged by type and place only, and the worker lives."""
    lone.tokenizer.errors[MARKER] = error
    bad, good = lone.submit(MARKER), lone.submit("good")
    lone.finish(bad, good)
    assert isinstance(bad.ending.error, EngineFault)
    assert bad.ending.answer == "EngineFault"
    assert good.ending.answer == [ids("good")]
    (record,) = [record for record in caplog.records if record.name.startswith("sidetok")]
    assert record.levelno == logging.ERROR
    assert vars(record)["error"] == type(error).__name__
    assert "fakes.py:" in vars(record)["where"]
    assert MARKER not in str(vars(record))
    assert MARKER not in str(bad.ending.error)


def test_one_bad_document_of_a_round_harms_no_other(lone: Rig) -> None:
    """Requests that were encoded together are answered one by one when one of them fails."""
    gate = lone.tokenizer.gate("first")
    first = lone.submit("first")
    gate.wait_entered()
    lone.tokenizer.errors["bad"] = Panic()
    bad = [lone.submit("a", "bad"), lone.submit("bad")]
    good = [lone.submit(c) for c in "cdefg"]
    gate.open()
    lone.finish(first, *bad, *good)
    assert [job.ending.answer for job in good] == [[ids(c)] for c in "cdefg"]
    assert [job.ending.answer for job in bad] == ["EngineFault"] * 2


def test_a_round_keeps_requests_apart(lone: Rig) -> None:
    """Short requests of a round get their own documents back, whatever their options, models and kinds are."""
    other = FakeTokenizer()
    gate = lone.tokenizer.gate("first")
    first = lone.submit("first")
    gate.wait_entered()
    plain = [lone.submit(*documents) for documents in (["ab"], [], ["c", "", "d"], ["e"])]
    cut = lone.submit("abcdef", options=EncodeOptions(max_tokens=2, truncation_side="left"))
    foreign = submit(lone.dispatcher, other, "xy", model="other")
    decode = DecodeJob(lone.tokenizer, "zz", slot=lone.dispatcher.admission.admit(2))
    lone.dispatcher.submit(decode)
    gate.open()
    lone.finish(first, *plain, cut, foreign, decode)
    assert [job.ending.answer for job in plain] == [[ids("ab")], [], [ids("c"), [], ids("d")], [ids("e")]]
    assert cut.ending.answer == [ids("ef")]
    assert foreign.ending.answer == [ids("xy")]
    assert other.seen == ["xy"]
    assert decode.ending.answer == ["zz"]


@pytest.mark.parametrize("stage", ["read", "write", "fail"])
@pytest.mark.parametrize("error", [RuntimeError(MARKER), Panic(MARKER)], ids=["exception", "panic"])
def test_every_stage_may_break(lone: Rig, stage: str, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A stage that raises ends its own job, with no answer if even `fail` breaks; the worker goes on."""
    gate = lone.tokenizer.gate("first")
    first = lone.submit("first")
    gate.wait_entered()

    def broken(*_: object) -> None:
        raise error

    bad, good = lone.submit("bad"), lone.submit("good")
    setattr(bad, stage, broken)
    if stage == "fail":
        lone.tokenizer.errors["bad"] = InvalidText("no")
    gate.open()
    lone.finish(first, bad, good)
    assert bad.ending.answer == (None if stage == "fail" else "EngineFault")
    assert isinstance(bad.ending.error, InvalidText if stage == "fail" else EngineFault)
    assert good.ending.answer == [ids("good")]
    assert MARKER not in caplog.text
    lone.settle()


def test_an_error_holds_no_text(lone: Rig) -> None:
    """The error that a job ended with has no frames and no cause: they would hold the body."""
    body = Gate()  # stands for the body
    alive = weakref.ref(body)

    def read(body: Gate = body) -> NoReturn:
        try:
            raise ValueError(body)
        except ValueError as error:
            raise InvalidText("no") from error

    endings: list[SidetokError | None] = []
    job: Job[str] = Job(
        read, lambda *_: "", str, lambda _, error: endings.append(error), lone.dispatcher.admission.admit(1), 0
    )
    del read, body
    gc.disable()
    try:
        lone.dispatcher.submit(job)
        del job
        lone.loop.run_until(lambda: bool(endings))
        lone.finish(lone.submit("after"))
        assert alive() is None
    finally:
        gc.enable()
    (error,) = endings
    assert isinstance(error, InvalidText)
    assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_an_on_done_that_breaks_harms_no_other(lone: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Answers that finish together with one that cannot be handed over are handed over all the same."""
    gate = lone.tokenizer.gate("first")
    jobs = [lone.submit(document) for document in ("first", "a", "b", "c")]
    gate.wait_entered()

    def broken(*_: object) -> None:
        raise ConnectionError(MARKER)

    jobs[1].on_done = broken
    gate.open()
    lone.finish(jobs[0], jobs[2], jobs[3])
    lone.settle()
    assert "ConnectionError" in str([vars(record) for record in caplog.records])
    assert MARKER not in caplog.text


def test_work_is_counted(lone: Rig) -> None:
    """Documents, ids and bytes are those of encode requests that were answered, queue times of every started job."""
    lone.tokenizer.errors["bad"] = Panic()
    jobs = [
        lone.submit("abc", "d", n_bytes=100),
        lone.submit("ef", model="other"),
        lone.submit("xyz", options=EncodeOptions(count_only=True)),
        lone.submit("bad"),
    ]
    decode = DecodeJob(lone.tokenizer, "zz", slot=lone.dispatcher.admission.admit(2))
    lone.dispatcher.submit(decode)
    lone.finish(*jobs, decode)
    lone.dispatcher.close()
    tally = lone.dispatcher.snapshot()
    work = {key.model: row for key, row in tally.work.items()}
    assert (work["fake"].n_documents, work["fake"].n_tokens, work["fake"].n_bytes) == (3, 7, 103)
    assert (work["other"].n_documents, work["other"].n_tokens, work["other"].n_bytes) == (1, 2, 2)
    assert tally.queue["cpu"].n == 5
    assert {key.route for key in tally.work} == {"cpu"}


def spin(seconds: float) -> int:
    """Use this much CPU on the calling thread; how much it was, in ns."""
    start_ns = time.thread_time_ns()
    while (spun_ns := time.thread_time_ns() - start_ns) < seconds * 1e9:
        pass
    return spun_ns


def test_cpu_time_is_counted_by_stage(lone: Rig) -> None:
    """CPU of reading and writing goes to its own part, nothing is counted twice, and a failed job's CPU is not lost."""
    spun_ns: dict[str, int] = {}
    clock_ns: list[int] = []
    nothing: dict[str, Any] = {}

    def job(model: str) -> FakeJob:
        return FakeJob(lone.tokenizer, "x", slot=lone.dispatcher.admission.admit(LONG), model=model)

    def clocked(stage: Callable[..., Any]) -> Callable[..., Any]:
        """The same, and what the worker has used when it ends."""

        def run(*arguments: Any) -> Any:
            result = stage(*arguments)
            clock_ns.append(time.thread_time_ns())
            return result

        return run

    before, busy, failing, after = map(job, ("before", "busy", "failing", "after"))
    before.write, after.read = clocked(before.write), clocked(after.read)
    read, write = busy.read, busy.write
    busy.read = lambda: (spun_ns.update(read=spin(0.03)), read())[1]
    busy.write = lambda request, result: (spun_ns.update(write=spin(0.02)), write(request, result))[1]
    failing.read = lambda: (spun_ns.update(failed=spin(0.04)), nothing["no such request"])[1]
    for one in (before, busy, failing, after):
        lone.dispatcher.submit(one)
    lone.finish(before, busy, failing, after)
    lone.dispatcher.close()
    work = {key.model: row for key, row in lone.dispatcher.snapshot().work.items()}
    assert work["busy"].decode_body_cpu_ns >= spun_ns["read"]
    assert work["busy"].write_answer_cpu_ns >= spun_ns["write"]
    assert work[""].decode_body_cpu_ns >= spun_ns["failed"]
    counted_ns = sum(
        row.decode_body_cpu_ns + row.submit_cpu_ns + row.encode_cpu_ns + row.write_answer_cpu_ns
        for row in (work["busy"], work[""])
    )
    assert counted_ns <= clock_ns[1] - clock_ns[0]


def test_close_finishes_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` returns after queued jobs were run; their answers can still be delivered."""
    monkeypatch.setattr(dispatcher_module, "CLOSE_S", LIMIT_S)
    rig = Rig(1)
    gate = rig.tokenizer.gate("first")
    jobs = [rig.submit(document) for document in ("first", "b", "c")]
    gate.wait_entered()
    gate.open()
    rig.dispatcher.close()
    rig.loop.run_ready()
    assert all(job.ended for job in jobs)


def test_the_number_of_workers_is_bounded() -> None:
    """`cpu_workers` says how many; 0 means one for each CPU, at least a few."""
    for asked in (0, 3):
        rig = Rig(asked)
        names = [t.name for t in threading.enumerate() if t.name.startswith("sidetok-worker")]
        assert rig.dispatcher.n_workers >= (asked or 4)
        assert len(names) >= rig.dispatcher.n_workers
        rig.close()
