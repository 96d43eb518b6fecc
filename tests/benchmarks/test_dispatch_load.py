"""The load generator of the dispatcher benchmark: what it offers, and that it hides nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pytest

from loadtest.schedule import NS
from tests.benchmarks import dispatch_load
from tests.benchmarks.dispatch_cpu import cpu_times, descendants, parts_of
from tests.benchmarks.dispatch_load import LONG_BYTES, Generator, Load, Offered, Record, documents_of, schedule
from tests.benchmarks.dispatch_run import Trial, latencies
from tests.data import corpora, tokenizer_json
from tests.gpu_core.device_data import Reference

MIXED = "Grüße, 世界! 👋 one two three four five six seven\n" * 3000


class Echo:
    """Answers at once with the reference's ids; never documents whose place is in `lost`, again those in `twice`."""

    name = "echo"

    def __init__(
        self, reference: Reference, lost: frozenset[int] = frozenset(), twice: frozenset[int] = frozenset()
    ) -> None:
        self._reference, self._lost, self._twice = reference, lost, twice
        self.n_documents = 0

    def submit(self, first: int, documents: Sequence[bytes], record: Record) -> None:
        """See `Target`."""
        for i, document in enumerate(documents, first):
            self.n_documents += 1
            for sample in record.sampled(i, 1):
                record.kept[sample] = self._reference.ids([document])[0].tobytes()
            for _ in range((i not in self._lost) + (i in self._twice)):
                record.answered(i, 1)

    def counters(self) -> dict[str, float]:
        """See `CountingTarget`."""
        return {"cpu_documents": self.n_documents}


class FakeTime:
    """Stands where the module `time` does: time passes while somebody sleeps, and only then."""

    thread_time_ns = staticmethod(time.thread_time_ns)

    def __init__(self) -> None:
        self.now_ns = NS

    def sleep(self, seconds: float) -> None:
        """See `time`."""
        self.now_ns += max(1, round(seconds * NS))

    def perf_counter_ns(self) -> int:
        """See `time`."""
        return self.now_ns

    def monotonic(self) -> float:
        """See `time`."""
        return self.now_ns / NS


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """The time of the load generator and of its records."""
    fake = FakeTime()
    monkeypatch.setattr(dispatch_load, "time", fake)
    return fake


def test_schedule_has_the_rate_and_is_repeatable() -> None:
    """Gaps of any shape have the mean of the rate; the same seed gives the same times."""
    for shape in (0.25, 1.0, 4.0):
        load = Load(10_000, 3.0, shape=shape, seed=3)
        due = schedule(load)
        assert len(due) == 30_000
        assert (np.diff(due) >= 0).all()
        assert due[-1] == pytest.approx(3e9, rel=0.05)
        assert np.diff(due).std() == pytest.approx(1e5 / shape**0.5, rel=0.1)
        assert (due == schedule(load)).all()


def test_documents_are_whole_characters_of_all_corpora_and_never_the_same() -> None:
    """Each decodes, none comes twice, sizes are spread evenly on a logarithmic scale, shares are equal."""
    texts = {"a": MIXED.encode(), "b": MIXED.upper().encode(), "c": ("é" * 100_000).encode()}
    documents = documents_of(Load(1200, 1.0, 1024, 16384, seed=1), texts)
    assert len(set(documents[:100])) > 60, "windows of a text that repeats itself may be equal"
    sizes = np.array([len(document) for document in documents])
    assert sizes.min() >= 1024 - 6
    assert sizes.max() <= 16384
    assert np.median(sizes) == pytest.approx(4096, rel=0.1)
    assert sum("é" in document.decode() and "x" not in document.decode() for document in documents) >= 400
    for document in documents:
        document.decode()


def test_documents_from_real_text_differ() -> None:
    """Windows start at different places."""
    text = "".join(corpora().values())[:400_000].encode()
    documents = documents_of(Load(500, 1.0, 256, 1024), {"text": text})
    assert len(set(documents)) >= 450


def test_latency_counts_from_the_intended_start() -> None:
    """A generator that hands a document over late makes its latency longer, not shorter."""
    record = Record(4, n_samples=0)
    record.n_answers[:3] = 1
    record.done_ns[:3] = np.array([1_000_000, 1_200_000, 9_000_000]) + 500
    offered = Offered(start_ns=500, sent_ns=np.array([0, 0, 8_900_000, 0]) + 500)
    row = latencies(np.array([0, 100_000, 200_000, 300_000]), offered, record)
    assert row["max_us"] == 8800.0
    assert row["p50_us"] == 1100.0
    assert row["unanswered"] == 1
    assert row["late_p99_us"] > 8000
    assert row["achieved_per_s"] == pytest.approx(3 / 9e-3)


def test_a_run_counts_every_document_and_finds_faults() -> None:
    """Lost documents, documents answered twice and wrong ids show in the row."""
    reference = Reference(tokenizer_json("byte_bpe"))
    load = Load(400, 0.25, 64, 256, seed=2)
    text = {"text": MIXED.encode()}
    trial = Trial.of(load, text, reference, n_samples=100)
    good = trial.run(Echo(reference), None, offered_per_s=400)
    assert (good["wrong"], good["unanswered"], good["compared"]) == (0, 0, 100)
    assert good["counters"] == {"cpu_documents": 100}
    assert good["host_cpu_us"] > 0
    assert good["cpu_parts_us"]["submit"] > good["generator_cpu_us"], "the echo encodes inside submit"
    assert trial.run(Echo(reference, twice=frozenset([7])), None)["wrong"] == 1
    lost = trial.run(Echo(reference, lost=frozenset([3, 5])), None, drain_s=0.05)
    assert (lost["unanswered"], lost["wrong"]) == (2, 0)
    other = Reference(tokenizer_json("split_bpe"))
    assert trial.run(Echo(other), None)["wrong"] > 90


@pytest.mark.usefixtures("fake_time")
def test_generator_offers_what_is_due_and_nothing_early() -> None:
    """Documents that are due together go in one group; none is handed over before its time."""
    reference = Reference(tokenizer_json("byte_bpe"))
    due = np.repeat(np.array([0, 250_000_000], dtype=np.int64), 50)
    record = Record(100, n_samples=0)
    generator = Generator(Echo(reference), due, [b"x"] * 100, record, None)
    generator.start()
    generator.join()
    assert record.wait(1.0)
    assert generator.offered.n_groups == 2
    assert (generator.offered.sent_ns - generator.offered.start_ns - due).tolist() == [0] * 100


def test_long_documents_are_handed_over_alone() -> None:
    """A group is answered as a whole, so that a long document in it would hold up the others."""
    groups: list[tuple[int, int]] = []

    class Sink:
        name = "sink"

        def submit(self, first: int, documents: Sequence[bytes], record: Record) -> None:
            groups.append((first, len(documents)))

    documents = [b"x" * (LONG_BYTES + 1) if i in (0, 3, 4, 9) else b"x" for i in range(10)]
    generator = Generator(Sink(), np.zeros(10, dtype=np.int64), documents, Record(10, n_samples=0), None)
    generator.start()
    generator.join()
    assert groups == [(0, 1), (1, 2), (3, 1), (4, 1), (5, 4), (9, 1)]


def test_cpu_time_is_told_apart() -> None:
    """Work of this thread and of a process that it started are found under their names."""
    before = cpu_times()
    code = "import sys, time\nwhile time.process_time() < .08: pass\nprint('x', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"x"
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        assert child.pid in descendants(os.getpid())
        parts = parts_of(before, cpu_times())
        assert child.stdin is not None
        child.stdin.close()
    assert parts["engine"] >= 80_000_000
    assert parts["MainThread"] >= 50_000_000
