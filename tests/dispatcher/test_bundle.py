"""Documents that are not in normal form: rewritten by a worker, sent to the GPU again, and never a third time."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import EngineFault, TextTooLarge
from dispatcher.gpu.fake_link import NOT_NORMAL, FakeEngine
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError
from gpu_core.layout import FLAG_NORMAL_FORM
from gpu_core.normal_form import Rewriter, passes_quick_check
from tests.data import tokenizer_json
from tests.engine_rig import LIMIT_S, engine_command, until
from tests.fakes import FakeTokenizer
from tests.gpu_rig import GPU_OFFSET, KEY, GpuRig, code_points

COMPOSES = "e\u0301"
PLAIN = EncodeOptions(add_special_tokens=False)
OPTIONS = GpuRouteOptions(gpus="0", gpu_classes_kib="4,64", gpu_contexts=2, gpu_watchdog_s=LIMIT_S)


def reason_of(document: bytes) -> str | None:
    """The quick check of a device; a document with `!` needs the CPU in any form."""
    return "hard" if b"!" in document else None if passes_quick_check(document.decode()) else NOT_NORMAL


@pytest.fixture
def rig() -> Iterator[GpuRig]:
    """Two workers, a GPU that is preferred and whose ids say so, and a tokenizer whose documents can be rewritten."""
    rig = GpuRig()
    rig.gpus.rewriters[KEY] = Rewriter(FakeTokenizer().spec)
    rig.gpus.start(encode=lambda document: code_points(document) + GPU_OFFSET, needs_cpu=reason_of)
    yield rig
    rig.close()


def engine(rig: GpuRig) -> FakeEngine:
    """The engine that serves."""
    served = rig.gpus.engines[0]
    assert served is not None
    return served


def normal_forms(rig: GpuRig) -> list[bool]:
    """Of every launch, whether its texts were said to be in normal form."""
    return [bool(flags & FLAG_NORMAL_FORM) for *_, flags in engine(rig).launches]


def gpu_ids(*documents: str) -> list[list[int]]:
    """What the GPU makes of documents."""
    return [[GPU_OFFSET + ord(c) for c in document] for document in documents]


def test_a_document_is_answered_in_its_normal_form(rig: GpuRig) -> None:
    """By a second replay, which takes it at its word; no engine of the CPU sees it, and it is counted."""
    jobs = [rig.submit("ab", COMPOSES, "c"), rig.submit(COMPOSES, options=EncodeOptions(count_only=True))]
    rig.finish(*jobs)
    assert jobs[0].ending.answer == gpu_ids("ab", "\u00e9", "c")
    assert jobs[1].n_tokens == 1
    assert {job.route for job in jobs} == {"gpu"}
    assert rig.tokenizer.seen == []
    snapshot = rig.gpus.routes[0].snapshot()
    assert (snapshot.n_rewritten, snapshot.needs_cpu) == (2, {NOT_NORMAL: 2})
    assert sorted(normal_forms(rig)) in ([False, True], [False, False, True, True], [False, True, True])
    rig.settle()


def test_a_second_try_is_the_last(rig: GpuRig) -> None:
    """What fails for another reason, then or before, is encoded by a worker; the rest stays as it is."""
    job = rig.submit(COMPOSES + "!", "a", COMPOSES, "!")
    rig.finish(job)
    e, a, composed, hard = job.ending.answer or []
    assert (a, composed) == (gpu_ids("a")[0], gpu_ids("\u00e9")[0])
    assert (e, hard) == ([ord(c) for c in COMPOSES + "!"], [ord("!")])
    assert sorted(rig.tokenizer.seen) == ["!", COMPOSES + "!"]
    assert job.route == "gpu"
    rig.settle()


def test_without_a_rewriter_or_a_better_gpu_the_cpu_answers(rig: GpuRig) -> None:
    """A text that cannot be rewritten is not sent twice, and neither is one for which the CPU is preferred by now."""
    marks = "a" + "\u0301\u0300" * 100
    job = rig.submit(marks)
    rig.finish(job)
    assert (job.ending.answer, job.route) == ([[ord(c) for c in marks]], "cpu")
    rig.gpus.rewriters.clear()
    job = rig.submit(COMPOSES)
    rig.finish(job)
    assert job.ending.answer == [[ord(c) for c in COMPOSES]]
    assert True not in normal_forms(rig)
    rig.settle()


def test_a_rewriter_that_breaks_costs_no_worker(rig: GpuRig) -> None:
    """The job ends with an error, and the worker goes on."""

    class Broken(Rewriter):
        """Panics."""

        def rewrite(self, document: bytes) -> bytes | None:
            raise BaseException("panic")

    works, rig.gpus.rewriters[KEY] = rig.gpus.rewriters[KEY], Broken(FakeTokenizer().spec)
    jobs = [rig.submit(COMPOSES) for _ in range(4)]
    rig.finish(*jobs)
    assert all([isinstance(job.ending.error, EngineFault) for job in jobs])
    rig.gpus.rewriters[KEY] = works
    job = rig.submit(COMPOSES)
    rig.finish(job)
    assert job.ending.answer == gpu_ids("\u00e9")


def test_an_engine_that_is_lost_in_between(rig: GpuRig) -> None:
    """What the first try answered is kept, and a worker encodes the rest."""
    engine(rig).lose_after(1)
    job = rig.submit("ab", COMPOSES)
    rig.finish(job)
    assert job.ending.answer == [*gpu_ids("ab"), [ord(c) for c in COMPOSES]]
    assert rig.tokenizer.seen == [COMPOSES]
    assert job.route == "gpu"
    rig.settle()


def test_replays_are_of_one_form(rig: GpuRig) -> None:
    """Documents of both kinds wait at the same time; each job has its own ids, whatever shares a replay."""
    source = random.Random(5)
    texts = [[source.choice(["ab", COMPOSES, "c!", "e\u0301x", "\u00e9"]) for _ in range(3)] for _ in range(60)]
    jobs = [rig.submit(*documents) for documents in texts]
    rig.finish(*jobs)
    for job, documents in zip(jobs, texts, strict=True):
        expected = [
            [ord(c) for c in document] if "!" in document else gpu_ids(document.replace(COMPOSES, "\u00e9"))[0]
            for document in documents
        ]
        assert job.ending.answer == expected
    rig.settle()


@pytest.mark.parametrize("synthetic", ["split_bpe"], indirect=True)
@pytest.mark.parametrize("normalizes", [False, True])
def test_over_a_real_engine_process(tmp_path: Path, synthetic: Tokenizer, normalizes: bool) -> None:
    """Ids are those of the reference, also beyond the largest class; workers rewrite what the device does not."""
    command = engine_command(tmp_path, "split_bpe", quick_check=True, normalizes=normalizes)
    clocks = ThreadClocks()
    gpus = Gpus(OPTIONS, clocks, tmp_path, command, False)
    gpus.start()
    dispatcher = Dispatcher(DispatcherOptions(cpu_workers=1, policy="gpu"), lambda _: None, gpus=gpus, clocks=clocks)
    gpus.add(synthetic, tokenizer_json("split_bpe"))
    until(lambda: gpus.serves(synthetic.spec.digest))
    documents = ["plain", f"caf{COMPOSES} " * 9, "\u212b", f"a{COMPOSES}\U00011939 ", f"long {COMPOSES} words. " * 5000]
    documents += ["\u1100\u1161"] if normalizes else []
    told: list[tuple[EncodedGroup | None, SidetokError | None]] = []
    ended = threading.Event()

    def on_done(result: EncodedGroup | None, error: SidetokError | None) -> None:
        told.append((result, error))
        ended.set()

    dispatcher.encode_group(synthetic, documents, on_done, PLAIN)
    assert ended.wait(LIMIT_S)
    ((result, error),) = told
    assert error is None
    assert result is not None
    expected = [document.ids for document in synthetic.encode(documents, PLAIN)]
    assert list(map(bytes, result.ids)) == expected
    assert result.route == "gpu"
    snapshot = gpus.snapshots()[0]
    assert snapshot.n_rewritten == (1 if normalizes else 4)
    assert snapshot.needs_cpu[NOT_NORMAL] >= snapshot.n_rewritten
    assert bool(snapshot.n_second) == normalizes
    dispatcher.close()
    gpus.close()


def test_the_bound_of_the_reference_is_the_same_for_what_comes_back(tmp_path: Path) -> None:
    """A long document that the GPU leaves is refused or answered as it is on the CPU route; a short one is answered."""
    data = tokenizer_json("split_bpe")
    bounded = load_tokenizer(data, engine="reference", cache_dir=None, max_reference_bytes=2000)
    command = engine_command(tmp_path, "split_bpe", quick_check=True)
    clocks = ThreadClocks()
    gpus = Gpus(OPTIONS, clocks, tmp_path, command, False)
    gpus.start()
    dispatcher = Dispatcher(DispatcherOptions(cpu_workers=1, policy="gpu"), lambda _: None, gpus=gpus, clocks=clocks)
    gpus.add(bounded, data)
    until(lambda: gpus.serves(bounded.spec.digest))
    # Too many marks in a row: it is not rewritten, and comes back.
    marks = "a" + "\u0301\u0300" * 100
    # The last one cannot be cut, neither for the GPU nor for the reference.
    texts = [marks, marks + " b" * 2000, marks + "\u4e2d" * (1 << 20)]
    told: queue.SimpleQueue[tuple[EncodedGroup | None, SidetokError | None]] = queue.SimpleQueue()
    for text in texts:
        outcomes = []
        for route in ("cpu", "gpu"):
            dispatcher.encode_group(bounded, [text], lambda *answer: told.put(answer), PLAIN, route=route)
            result, error = told.get(timeout=LIMIT_S)
            outcomes.append((result and [bytes(ids) for ids in result.ids], type(error), str(error)))
        assert outcomes[0] == outcomes[1], text[:300]
        assert (outcomes[0][1] is TextTooLarge) == (text is texts[-1])
    dispatcher.close()
    gpus.close()
