"""Groups encoded in process: one callback each, with the ids that a request would get."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dispatcher.errors import (
    Cancelled,
    DeadlineExceeded,
    DispatcherClosed,
    EngineFault,
    InvalidOption,
    InvalidText,
    NoGpuRoute,
)
from dispatcher.finisher import Finisher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.meter import WorkKey
from dispatcher.request import EncodeOptions
from gpu_core.errors import SidetokError
from tests.fakes import LIMIT_S, Panic
from tests.gpu_rig import GpuRig, code_points

SLOW_NS = 3_600_000_000_000


class Calls:
    """Makes calls and keeps what they were told."""

    def __init__(self, rig: GpuRig) -> None:
        self.rig = rig
        self.told: queue.SimpleQueue[tuple[EncodedGroup | None, SidetokError | None]] = queue.SimpleQueue()
        self.threads: list[str] = []

    def start(self, *documents: Any, options: EncodeOptions | None = None, **more: Any) -> Any:
        """Call."""
        options = options or EncodeOptions(add_special_tokens=False)
        return self.rig.dispatcher.encode_group(self.rig.tokenizer, documents, self._tell, options, **more)

    def result(self) -> EncodedGroup:
        """What the next call that ends was told."""
        result, error = self.told.get(timeout=LIMIT_S)
        assert error is None
        assert result is not None
        return result

    def error(self) -> SidetokError:
        """The same for one that fails."""
        result, error = self.told.get(timeout=LIMIT_S)
        assert result is None
        assert error is not None
        return error

    def _tell(self, result: EncodedGroup | None, error: SidetokError | None) -> None:
        self.threads.append(threading.current_thread().name)
        self.told.put((result, error))


@pytest.fixture
def calls() -> Iterator[Calls]:
    """A dispatcher that prefers its GPU, which is not up yet."""
    rig = GpuRig()
    yield Calls(rig)
    assert rig.loop.n_wakes == 0
    rig.close()


def ids_of(result: EncodedGroup) -> list[list[int]]:
    """Unpacked ids."""
    return [np.frombuffer(ids, "<u4").tolist() for ids in result.ids]


def ids(*documents: str) -> list[list[int]]:
    """What both routes make of documents."""
    return [[ord(c) for c in document] for document in documents]


DOCUMENTS = ("abc", b"", "\u00e9".encode(), memoryview(b"xy"), "\u6771")
EXPECTED = ids("abc", "", "\u00e9", "xy", "\u6771")


def test_groups_on_the_gpu(calls: Calls) -> None:
    """Bytes, views and text, with options; nothing of it is seen by an engine of the CPU, nor by the loop."""
    calls.rig.gpus.start()
    calls.start(*DOCUMENTS)
    result = calls.result()
    assert (ids_of(result), result.n_tokens, result.route) == (EXPECTED, [3, 0, 1, 2, 1], "gpu")
    calls.start(*DOCUMENTS, options=EncodeOptions(max_tokens=2))
    assert ids_of(calls.result()) == [row[:2] for row in EXPECTED]
    calls.start(*DOCUMENTS, options=EncodeOptions(count_only=True))
    count = calls.result()
    assert (count.ids, count.n_tokens) == ([], [3, 0, 1, 2, 1])
    assert calls.rig.tokenizer.seen == []
    assert calls.rig.dispatcher.snapshot().work[WorkKey("", "gpu")].n_documents == 15


def test_groups_on_the_cpu(calls: Calls) -> None:
    """Without an engine, or when asked for, workers encode; the callback runs on one of them."""
    calls.start(*DOCUMENTS)
    result = calls.result()
    assert (ids_of(result), result.n_tokens, result.route) == (EXPECTED, [3, 0, 1, 2, 1], "cpu")
    calls.rig.gpus.start()
    calls.start("ab", route="cpu", options=EncodeOptions(count_only=True), model="label")
    assert (calls.result().n_tokens, calls.rig.tokenizer.seen[-1]) == ([2], "ab")
    assert all(name.startswith("sidetok-worker") for name in calls.threads)
    assert WorkKey("label", "cpu") in calls.rig.dispatcher.snapshot().work
    calls.start()
    assert calls.result().ids == []


def test_long_ids_are_not_copied(calls: Calls) -> None:
    """Many ids come as a view of the slot, which is free again when nobody looks at it."""
    calls.rig.gpus.start()
    text = b"x" * 300_000
    calls.start(text)
    (view,) = calls.result().ids
    assert not isinstance(view, bytes)
    assert view.nbytes == 4 * len(text)
    assert calls.rig.gpus.routes[0].snapshot().n_held == 1
    view.release()
    calls.start(b"y")
    calls.result()
    assert calls.rig.gpus.routes[0].snapshot().n_held == 0


@pytest.mark.parametrize("count_only", [False, True])
def test_what_the_gpu_leaves_is_encoded_by_a_worker(calls: Calls, count_only: bool) -> None:
    """The results are merged, in order."""
    calls.rig.gpus.start(needs_cpu=lambda document: "hard" if b"!" in document else None)
    options = EncodeOptions(count_only=count_only)
    calls.start("a", "b!", "", "!", options=options)
    result = calls.result()
    assert result.n_tokens == [1, 2, 0, 1]
    assert ids_of(result) == ([] if count_only else ids("a", "b!", "", "!"))
    assert sorted(calls.rig.tokenizer.seen) == ["!", "b!"]
    assert result.route == "gpu"


def test_bytes_that_are_no_text_on_the_gpu(calls: Calls) -> None:
    """The GPU leaves them to the CPU route, which says which document it is."""
    calls.rig.gpus.start(
        encode=lambda document: code_points(document[:0]),
        needs_cpu=lambda document: "invalid UTF-8" if b"\xff" in document else None,
    )
    calls.start(b"a", b"b\xff", route="gpu")
    error = calls.error()
    assert isinstance(error, InvalidText)
    assert "document 1" in str(error)
    assert calls.told.empty()


def test_results_that_cannot_be_finished(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told, once, and the next call is served."""
    calls.rig.gpus.start()
    with monkeypatch.context() as patch:
        patch.setattr(Finisher, "finish", _no_memory)
        patch.setattr(Finisher, "finish_view", _no_memory)
        calls.start("abc", options=EncodeOptions(add_special_tokens=False, max_tokens=2), route="gpu")
        assert isinstance(calls.error(), EngineFault)
    calls.start("abc", route="gpu")
    assert ids_of(calls.result()) == ids("abc")
    assert calls.told.empty()


def _no_memory(*_: Any) -> Any:
    raise MemoryError


def test_a_call_that_is_cancelled_while_results_come(calls: Calls) -> None:
    """What the GPU leaves of it is not encoded any more."""
    call: list[Any] = []
    calls.rig.gpus.start(needs_cpu=lambda document: call[0].cancel() or "hard")
    gate = calls.rig.tokenizer.gate("hold")
    for _ in range(2):
        calls.start("hold", route="cpu")
    gate.wait_entered()
    engine = calls.rig.gpus.engines[0]
    assert engine is not None
    engine.is_hung = True
    call.append(calls.start("left", route="gpu"))
    engine.is_hung = False
    engine.interrupt()
    gate.open()
    told = [calls.told.get(timeout=LIMIT_S) for _ in range(3)]
    assert [type(error) for _, error in told if error] == [Cancelled]
    assert "left" not in calls.rig.tokenizer.seen


def test_a_lost_engine(calls: Calls) -> None:
    """Calls in flight are answered by workers."""
    engine = calls.rig.gpus.start(replay_ns=lambda n_bytes, n_documents: SLOW_NS)
    for i in range(10):
        calls.start(f"a{i}")
    engine.lose()
    results = [calls.result() for _ in range(10)]
    assert sorted(map(ids_of, results)) == sorted(ids(f"a{i}") for i in range(10))
    assert {result.route for result in results} == {"cpu"}


def test_calls_that_nobody_waits_for(calls: Calls) -> None:
    """A cancelled call and one whose deadline passed are told so, once."""
    engine = calls.rig.gpus.start(replay_ns=lambda n_bytes, n_documents: SLOW_NS)
    calls.start("x" * 300_000)
    waiting = calls.start("y" * 300_000)
    calls.start("z" * 300_000, deadline_ns=1)
    waiting.cancel()
    gate = calls.rig.tokenizer.gate("hold")
    calls.start("hold", route="cpu")
    gate.wait_entered()
    calls.start("never", route="cpu").cancel()
    engine.lose()
    gate.open()
    told = [calls.told.get(timeout=LIMIT_S) for _ in range(5)]
    errors = sorted(type(error).__name__ for _, error in told if error)
    assert errors == [Cancelled.__name__, Cancelled.__name__, DeadlineExceeded.__name__]
    assert calls.told.empty()
    assert "never" not in calls.rig.tokenizer.seen


def test_what_is_wrong_is_said(calls: Calls) -> None:
    """At once where it can be, else by the callback; a callback that breaks harms nobody."""
    with pytest.raises(NoGpuRoute, match="scripted"):
        calls.start("a", route="gpu")
    calls.rig.gpus.start()
    with pytest.raises(InvalidOption):
        calls.start("a", route="gpu", options=EncodeOptions(char_offsets=True))
    calls.start(b"a\xff", route="cpu")
    error = calls.error()
    assert isinstance(error, InvalidText)
    # What it came from holds the document, which a traceback could show.
    assert error.__context__ is None
    calls.rig.tokenizer.errors["bad"] = Panic()
    calls.start("bad", route="cpu")
    assert isinstance(calls.error(), EngineFault)

    def broken(*_: object) -> None:
        raise RuntimeError

    for route in ("cpu", "gpu"):
        calls.rig.dispatcher.encode_group(calls.rig.tokenizer, ["a"], broken, route=route)
        calls.start("b", route=route)
        assert ids_of(calls.result()) == ids("b")


def test_a_closed_dispatcher(calls: Calls) -> None:
    """What is queued is still answered, a new call raises, and what a GPU gives back afterwards is told why."""
    engine = calls.rig.gpus.start(replay_ns=lambda n_bytes, n_documents: SLOW_NS)
    calls.start("a")
    gate = calls.rig.tokenizer.gate("hold")
    calls.start("hold", route="cpu")
    gate.wait_entered()
    calls.start("queued", route="cpu")
    gate.open()
    calls.rig.dispatcher.close()
    assert sorted([ids_of(calls.result()), ids_of(calls.result())]) == sorted([ids("hold"), ids("queued")])
    for route in ("cpu", "auto"):
        with pytest.raises(DispatcherClosed, match="closed"):
            calls.start("late", route=route)
    engine.lose()
    assert isinstance(calls.error(), DispatcherClosed)
    assert calls.told.empty()
