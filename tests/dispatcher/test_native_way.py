"""The short way in C: the same answers, counts and lessons as in Python, which goes on with all that is odd."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dispatcher.costs import SAMPLE, content_kind
from dispatcher.gpu import account, local_link, local_place, short_way
from dispatcher.gpu.local_place import AFTER_NAP, AT_FIRST, Place
from dispatcher.meter import WorkKey
from dispatcher.tokenizer import Tokenizer
from gpu_core import layout
from gpu_core.waiting import Prediction
from tests.direct_gpu import DirectDevice
from tests.dispatcher.group_caller import PLAIN
from tests.dispatcher.native_rig import LONG, PREDICTED_NS, NativeCalls, native_module, text_of

pytestmark = pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, where whoever imports it finds it; and what is open stays so."""
    made = native_module()
    monkeypatch.setitem(sys.modules, "dispatcher.gpu.native_way", made)
    monkeypatch.setattr("dispatcher.gpu.short_way.OPEN_NS", 1 << 60)
    return made


@pytest.fixture
def calls(module: ModuleType, synthetic: Tokenizer, tmp_path: Path) -> Iterator[NativeCalls]:
    """A dispatcher whose texts are launched from C, on a device that answers at once."""
    made = NativeCalls(synthetic, tmp_path, DirectDevice())
    made.opened()
    yield made
    made.close()


def test_the_same_constants(module: ModuleType, synthetic: Tokenizer) -> None:
    """C has copies of them."""
    assert module.LONG_NAP_NS == local_link.LONG_NAP_NS
    for name in ("LONG_STEPS", "LONG_LEARNS", "LONG_ROW", "LONG_DOUBLES", "LONG_LATE"):
        assert getattr(module, name) == getattr(local_place, name)
    assert module.LONG_EARLY_PARTS * local_place.LONG_EARLY == 1
    assert (module.MEASURED, module.MAX_NOTED) == (account.MEASURED, short_way.MAX_NOTED)
    assert (module.MAX_FLIGHTS, module.FLAG_IDS) == (short_way.MAX_FLIGHTS, layout.FLAG_IDS)
    assert module.SAMPLE_BYTES == SAMPLE


def test_it_learns_as_python_does(module: ModuleType, synthetic: Tokenizer) -> None:
    """From naps that were long enough, in rows, from late ones, from some that were far too late, and without naps."""
    rng = np.random.default_rng(1)
    prediction, expected, n_in_row, n_lessons = Prediction(), float(PREDICTED_NS), 0, 0
    prediction.seen(LONG, PREDICTED_NS, False)
    slot = cast(Any, SimpleNamespace(number=0))
    context = cast(Any, SimpleNamespace(poll=None, in_normal_form=False))
    place = Place(slot, context, (prediction, Prediction()))
    place.n_bytes = LONG
    n_naps = 0
    for _ in range(5_000):
        place.expect(0, is_second=False)
        due_ns = place.due_ns
        has_napped = bool(rng.integers(8))
        took_ns = int(PREDICTED_NS * rng.choice([0.5, 0.9, 1.1, 1.3, 5.0], p=[0.3, 0.3, 0.3, 0.09, 0.01]))
        was_late = has_napped and took_ns > due_ns
        before = prediction.of(LONG)
        if has_napped and not was_late:
            n_naps += 1
            if n_naps % local_place.LONG_LEARNS == 0:
                place.learn_early(local_place.LONG_LEARNS)
        else:
            place.was_late = was_late
            place.learn(took_ns, AFTER_NAP if has_napped else AT_FIRST)
            if has_napped or took_ns < due_ns:
                n_naps = 0
        expected, n_in_row = module.learned(before, due_ns, took_ns, was_late, has_napped, n_in_row)
        assert prediction.of(LONG) == pytest.approx(expected, abs=1)
        n_lessons += expected != before
    assert n_lessons > 1000


def test_kinds_of_content(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """As everywhere else, wherever the sample ends."""
    for text in ("", "a", "é", "aé", "aaé", "你好", "a你", "aaa你", "abcd😀", "😀", "пример текста"):
        for n in (1, 2, 50, 200, 600):
            for before in range(5):
                data = (b"x" * before) + text.encode() * n
                assert calls.native.kind_of(data) == content_kind(data)


def test_each_text_has_its_ids(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Of any size near the first one, one after the other, counted once each in metrics, as the device was asked."""
    n, sizes = 100, np.random.default_rng(2).integers(LONG - 20_000, LONG + 20_000, 100).tolist()
    for seed, size in enumerate(sizes):
        calls.start(text_of(size, seed))
        calls.right()
    assert calls.device.n_direct == n
    assert calls.device.n_launched == 0
    work = calls.dispatcher.snapshot().work[WorkKey("", "gpu")]
    total = sum(sizes) + 2 * LONG
    assert (work.n_documents, work.n_bytes) == (n + 2, total)
    assert work.n_tokens == sum(size // 4 for size in sizes) + 2 * (LONG // 4)
    assert calls.dispatcher.decisions()["gpu", "policy"] == n + 2
    (route,) = calls.gpus.snapshots().values()
    (replays,) = route.replays.values()
    assert (replays.times.n, replays.n_documents, replays.n_bytes, route.n_views) == (n + 2, n + 2, total, n + 2)
    assert (route.n_in_flight, calls.native.n_flying) == (0, 0)


def test_several_under_way(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Four from C; a fifth comes to Python, which goes on with all of them."""
    calls.device.is_held = True
    texts = [text_of(LONG + i, i) for i in range(6)]
    driver = calls.gpus.driver
    assert driver is not None
    assert not driver.is_busy
    for n, text in enumerate(texts, 1):
        calls.start(text)
        assert driver.is_busy
        assert calls.native.n_flying == (n if n <= 4 else 0)
    assert calls.device.n_direct == 4
    while len(calls.results) < 6:
        calls.complete()
        calls.rest()
    calls.right(6)


def test_a_rest_that_is_over_before(module: ModuleType, synthetic: Tokenizer, tmp_path: Path) -> None:
    """A caller that has no time to wait looks, and has its thread back; the text stays where it is."""
    calls = NativeCalls(synthetic, tmp_path, DirectDevice())
    calls.opened()
    for place in calls.link._places.values():
        place.predictions[0].seen(330_000, 200_000, False)
    # Python learns how long replays of another size take, and tells C.
    calls.start(text_of(330_000))
    calls.right()
    calls.until(lambda: calls.native.is_quiet)
    n_stayed = 0
    for seconds in (0.0, 1e-6) * 10:
        calls.device.is_held = True
        calls.start(text_of(330_000))
        assert calls.rest(seconds)
        # A thread that is interrupted for long may come when the text is late.
        n_stayed += calls.native.n_flying
        calls.complete()
        calls.right()
        calls.until(lambda: calls.native.is_quiet)
    assert n_stayed > 0
    calls.close()


@pytest.mark.parametrize("n", [1, 3])
def test_late_ones(calls: NativeCalls, synthetic: Tokenizer, n: int) -> None:
    """Python waits on for a text whose replay takes longer than naps go on; the next ones are launched from C again."""
    calls.device.is_held = True
    for seed in range(n):
        calls.start(text_of(seed=seed))
    for _ in range(3):
        calls.rest(0.001)
    assert not calls.results
    assert calls.native.n_flying == 0
    assert sum(len(context.told) for context in calls.device.contexts) == n
    calls.complete()
    calls.right(n)
    calls.until(lambda: calls.native.is_quiet)
    calls.device.n_direct = 0
    calls.start(text_of())
    calls.right()
    assert calls.device.n_direct == 1


def test_replays_that_take_their_time(module: ModuleType, synthetic: Tokenizer, tmp_path: Path) -> None:
    """Naps end when texts are answered, and find the time that replays take."""
    calls = NativeCalls(synthetic, tmp_path, DirectDevice(replay_s=0.0002))
    calls.opened()
    for seed in range(200):
        calls.start(text_of(LONG + seed, seed))
        calls.right()
    assert calls.device.n_direct > 0
    calls.close()


def test_a_text_that_the_device_leaves(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """The CPU answers it, and the next one takes the ordinary way."""
    calls.device.is_flagged = True
    text = text_of(seed=5)
    calls.start(text)
    calls.until(lambda: calls.results)
    _, result, error = calls.results.popleft()
    assert error is None
    assert result is not None
    assert result.route == "cpu"
    assert [bytes(ids) for ids in result.ids] == [one.ids for one in synthetic.encode([text.decode()], PLAIN)]
    calls.device.is_flagged = False
    calls.start(text_of(seed=6))
    assert calls.device.n_direct == 1
    calls.right()


def test_a_launch_that_fails(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """The engine is lost; the text, and what was under way beside it, are answered by the CPU."""
    calls.device.is_held = True
    calls.start(text_of(seed=1))
    calls.device.is_broken = True
    calls.start(text_of(seed=2))
    calls.until(lambda: len(calls.results) == 2)
    for text, result, error in calls.results:
        assert error is None
        assert result is not None
        assert result.route == "cpu"
        assert [bytes(ids) for ids in result.ids] == [one.ids for one in synthetic.encode([text.decode()], PLAIN)]
    assert "CUDA error 719" in calls.gpus.why_not(synthetic.spec.digest)


def test_others_come_meanwhile(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Short work from another thread is not held up, and all are answered."""
    calls.device.is_held = True
    calls.start(text_of(seed=1))
    thread = threading.Thread(target=calls.submit, args=(b"short one", b"short one"))
    thread.start()
    thread.join()
    assert not calls.native.is_quiet
    calls.complete()
    calls.right(2)
    calls.until(lambda: calls.native.is_quiet)


def test_another_thread_launches_from_python(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Only the thread that drives launches from C."""
    thread = threading.Thread(target=calls.start, args=(text_of(seed=3),))
    thread.start()
    thread.join()
    assert (calls.device.n_direct, calls.device.n_launched) == (0, 1)
    calls.right()


def test_a_callback_that_fails(calls: NativeCalls, synthetic: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    """Is logged without the text; one that ends the program does."""

    def fail(error: BaseException) -> None:
        def on_done(*told: object) -> None:
            raise error

        text = calls.reserved(text_of())
        calls.dispatcher.encode_group(calls.tokenizer, [text], on_done, PLAIN, route="gpu")

    fail(ValueError("no text"))
    with caplog.at_level(logging.ERROR, "sidetok.short_way"):
        calls.until(lambda: caplog.records)
    assert vars(caplog.records[0])["error"] == "ValueError"
    fail(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        calls.until(lambda: False)
    calls.start(text_of())
    calls.right()
    assert calls.device.n_direct == 3


def test_a_callback_that_goes_on(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """It may call again at once, and rest; a rest within a rest does nothing."""
    told: list[Any] = []

    def on_done(result: Any, error: Any) -> None:
        told.append((bytes(result.ids[0]), error, calls.rest(0.0)))
        if len(told) < 40:
            start()

    def start() -> None:
        text = calls.reserved(text_of(seed=len(told)))
        calls.dispatcher.encode_group(calls.tokenizer, [text], on_done, PLAIN, route="gpu")

    start()
    calls.until(lambda: len(told) == 40)
    assert told == [(text_of(seed=seed), None, False) for seed in range(40)]
    assert calls.device.n_direct == 40


def test_ids_keep_their_slot(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """As long as any view of them lives, and no longer; more texts than slots were encoded meanwhile."""
    calls.start(text_of(seed=7))
    (ids,) = calls.right()
    view = np.asarray(ids)[4:8]
    before = view.tobytes()
    del ids
    for seed in range(30):
        calls.start(text_of(seed=seed))
        calls.right()
        assert view.tobytes() == before
    assert view.tobytes() == text_of(seed=7)[4:8]
    queue = next(iter(calls.gpus._routes[0]._incarnation.former.queues.values()))  # type: ignore[union-attr]
    calls.reserved(text_of())
    assert sum(queue.n_held) == 2
    del view, queue
    calls.reserved(text_of())
    queue = next(iter(calls.gpus._routes[0]._incarnation.former.queues.values()))  # type: ignore[union-attr]
    assert sum(queue.n_held) == 1


def test_nothing_is_left_of_a_text(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Neither the callback, nor what it refers to, nor anything that grows with texts."""

    class Callback:
        def __call__(self, result: Any, error: Any) -> None:
            told.append(error)

    told: list[Any] = []

    def run(n: int) -> weakref.ref[Callback]:
        for seed in range(n):
            callback = Callback()
            text = calls.reserved(text_of(seed=seed % 7))
            calls.dispatcher.encode_group(calls.tokenizer, [text], callback, PLAIN, route="gpu")
            del text
            calls.until(lambda: told)
            told.clear()
        return weakref.ref(callback)

    run(300)
    gc.collect()
    before = len(gc.get_objects())
    assert run(300)() is None
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_a_model_that_goes_and_comes(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """What is under way is answered; nothing is launched for it from C any more, and memory of the GPU is let go."""
    calls.device.is_held = True
    calls.start(text_of(seed=1))
    contexts = [weakref.ref(context) for context in calls.device.contexts]
    link = calls.link
    calls.gpus.remove(calls.tokenizer)
    calls.until(lambda: not link._places)
    assert calls.native.n_findings == 0
    calls.complete()
    calls.right()
    calls.device.contexts.clear()
    calls.until(lambda: gc.collect() and not any(context() for context in contexts))


def test_it_ends_with_texts_under_way(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Each is told so, or has its ids."""
    calls.device.is_held = True
    for seed in range(3):
        calls.start(text_of(seed=seed))
    calls.gpus.close()
    calls.until(lambda: len(calls.results) == 3)
    for text, result, error in calls.results:
        expected = [one.ids for one in synthetic.encode([text.decode()], PLAIN)]
        assert error is not None or (result is not None and [bytes(ids) for ids in result.ids] == expected)
