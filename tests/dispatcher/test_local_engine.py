"""A GPU that the process uses itself: exact results on the thread that drives, and one end for good when it fails."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.dispatcher import Dispatcher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.link import EngineLost
from dispatcher.gpu.local_engine import LocalEngine
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.local_place import AFTER_NAP, LONG_BYTES
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.table_builder import read_tables
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.tokenizer import Tokenizer
from gpu_core.execution import Device
from gpu_core.layout import FLAG_IDS, REASON_NOT_NORMAL, REASONS
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables
from tests.data import tokenizer_json
from tests.dispatcher.group_caller import PLAIN, GroupCaller
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import (
    LIMIT_S,
    OPTIONS,
    added,
    crowded,
    holdings,
    model,
    put,
    tables_fd,
    until,
    wrong_documents,
)

FAST: dict[str, Any] = {"gpus": "0", "gpu_engine": "local", "gpu_classes_kib": "4,512", "gpu_contexts": 2}
DOCUMENTS = ["some text", "", "你好 123's", "x" * 300_000]


def host(folder: Path, **script: Any) -> HostEngine:
    """The script of a device that serves one tokenizer."""
    path = folder / "tokenizer.json"
    path.write_bytes(model().data)
    return HostEngine({model().key: str(path)}, **script)


class Local(GroupCaller):
    """A dispatcher with a GPU of this process."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, driven: bool, **script: Any) -> None:
        watchdog = script.pop("gpu_watchdog_s", LIMIT_S)
        options = GpuRouteOptions(**FAST, gpu_watchdog_s=watchdog)
        make_gpu = host(folder, **script).gpu
        gpus = Gpus(options, ThreadClocks(), folder, calibrate=False, driven=driven, make_gpu=make_gpu)
        dispatcher = Dispatcher(DispatcherOptions(cpu_workers=1, policy="gpu"), lambda _: None, gpus=gpus)
        super().__init__(gpus, dispatcher, tokenizer)
        self.gpus.start()
        self.gpus.add(tokenizer, tokenizer_json("byte_bpe"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Rest, as long as the dispatcher likes it, until a condition holds."""
        if self.gpus.driver is None:
            until(condition)
            return
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s
            self.gpus.driver.rest(0.01)

    def encode(self, documents: list[str]) -> tuple[list[bytes], str]:
        """Ids of one call, and the route."""
        results = self.submit(documents)
        self.until(lambda: bool(results))
        return [bytes(ids) for ids in results[0].ids], results[0].route

    def close(self) -> None:
        """End it."""
        self.gpus.close()
        self.dispatcher.close()


@pytest.fixture
def make(tmp_path: Path, synthetic: Tokenizer) -> Iterator[Callable[..., Local]]:
    """Makes dispatchers, which are closed at the end."""
    made: list[Local] = []

    def make_one(driven: bool = True, **script: Any) -> Local:
        made.append(Local(tmp_path, synthetic, driven, **script))
        return made[-1]

    yield make_one
    for local in made:
        local.close()


def expected(tokenizer: Tokenizer, documents: list[str]) -> list[bytes]:
    """What is exact."""
    return [document.ids for document in tokenizer.encode(documents, PLAIN)]


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
@pytest.mark.parametrize("driven", [True, False])
def test_results_are_exact(make: Callable[..., Local], synthetic: Tokenizer, driven: bool) -> None:
    """Driven, they come on the caller's thread; otherwise on that of the GPU. Other threads may submit."""
    local = make(driven, replay_s=0.0005)
    local.until(lambda: local.serves)
    assert local.encode(DOCUMENTS) == (expected(synthetic, DOCUMENTS), "gpu")
    results: list[list[EncodedGroup]] = []
    threads = [threading.Thread(target=lambda: results.append(local.submit(DOCUMENTS))) for _ in range(6)]
    for thread in threads:
        thread.start()
    local.until(lambda: len(results) == 6 and all(results))
    assert all([bytes(ids) for ids in result[0].ids] == expected(synthetic, DOCUMENTS) for result in results)
    assert (local.threads == {threading.get_ident()}) == driven
    (status,) = local.gpus.statuses()
    assert (status.state, status.n_restarts) == ("ready", 0)
    assert status.facts is not None


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
@pytest.mark.parametrize("driven", [True, False])
def test_a_device_that_fails_stays_down(make: Callable[..., Local], synthetic: Tokenizer, driven: bool) -> None:
    """What is under way is answered by the CPU route, and so is all that comes later."""
    local = make(driven, fail_after=2)
    local.until(lambda: local.serves)
    results = [local.submit(DOCUMENTS[:3]) for _ in range(20)]
    local.until(lambda: all(results))
    assert all([bytes(ids) for ids in result[0].ids] == expected(synthetic, DOCUMENTS[:3]) for result in results)
    local.until(lambda: not local.serves)
    assert local.encode(DOCUMENTS) == (expected(synthetic, DOCUMENTS), "cpu")
    (status,) = local.gpus.statuses()
    assert (status.state, status.reason) == ("down", "the device is dead")
    assert "the device is dead" in local.gpus.why_not(synthetic.spec.digest)


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_a_replay_that_hangs_ends_the_route(make: Callable[..., Local], synthetic: Tokenizer) -> None:
    """After the watchdog's time and a second."""
    local = make(hang_after=0, gpu_watchdog_s=0.1)
    local.until(lambda: local.serves)
    assert local.encode(DOCUMENTS) == (expected(synthetic, DOCUMENTS), "cpu")
    assert not local.serves
    assert local.gpus.statuses()[0].state == "down"


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_without_a_device_the_cpu_route_serves(make: Callable[..., Local], synthetic: Tokenizer) -> None:
    """The reason is told."""
    local = make(unavailable="no GPU here")
    until(lambda: local.gpus.statuses()[0].state == "down")
    assert local.encode(DOCUMENTS) == (expected(synthetic, DOCUMENTS), "cpu")
    assert local.gpus.statuses()[0].reason == "no GPU here"


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_tokenizers_come_and_go(make: Callable[..., Local], synthetic: Tokenizer) -> None:
    """One that was removed is not served, and can be added again."""
    local = make()
    local.until(lambda: local.serves)
    local.gpus.remove(synthetic)
    local.until(lambda: not local.serves)
    local.gpus.add(synthetic, tokenizer_json("byte_bpe"))
    local.until(lambda: local.serves)
    assert local.encode(DOCUMENTS) == (expected(synthetic, DOCUMENTS), "gpu")


def test_a_link_alone(tmp_path: Path) -> None:
    """Completions, reasons, interrupts and the end, without leaving a descriptor open."""
    before = holdings()
    link = LocalLink(host(tmp_path).gpu(OPTIONS), OPTIONS)
    assert link.load(model().key, read_tables(os.dup(tables_fd("byte_bpe")))) == (4, 4)
    slot = link.slots(model().key)[0]
    documents = [b"one two", b"\xff", b"", "café".encode()]
    link.launch(slot, *put(slot, documents), FLAG_IDS)
    assert link.is_busy
    (completion,) = link.wait(LIMIT_S)
    assert wrong_documents(completion, documents, model()) == []
    assert link.wait(0.0) == []
    link.interrupt()
    assert link.wait(LIMIT_S) == []
    link.kill("because")
    with pytest.raises(EngineLost, match="because"):
        link.launch(slot, 0, 0, FLAG_IDS)
    with pytest.raises(EngineLost, match="because"):
        link.wait(None)
    link.close()
    link.close()
    assert not any("eventfd" in name for name in added(before))


def test_second_replays(tmp_path: Path) -> None:
    """Of text that is not in normal form a link says once what became of it, and learns apart how long that takes."""
    path, which = tmp_path / "split.json", model("split_bpe")
    path.write_bytes(which.data)
    script = HostEngine({which.key: str(path)}, quick_check=True, normalizes=True, replay_s=0.0005)
    link = LocalLink(script.gpu(OPTIONS), OPTIONS)
    link.load(which.key, read_tables(os.dup(tables_fd("split_bpe"))))
    slot = link.slots(which.key)[0]
    for texts in (["one", "cafe\u0301 two"], ["plain"], ["\u1100\u1161", "e\u0301"]):
        documents = [text.encode() for text in texts]
        link.launch(slot, *put(slot, documents), FLAG_IDS)
        (completion,) = link.wait(LIMIT_S)
        n_left = sum(text.startswith("\u1100") for text in texts)
        assert dict(completion.needs_cpu) == dict.fromkeys(range(n_left), REASONS[REASON_NOT_NORMAL])
        assert wrong_documents(completion, documents, which) == list(range(n_left))
        assert completion.n_second == int(texts != ["plain"])
        assert completion.replay_ns >= (500_000 if texts == ["plain"] else 1_000_000)
        assert link.wait(0.0) == []
    place = link._places[slot.number]
    first, second = place.predictions
    assert first._by_bucket.keys() != second._by_bucket.keys()
    assert len(second._by_bucket) == 2
    link.close()


def test_a_link_among_many_descriptors(tmp_path: Path) -> None:
    """It waits, and is woken, like any other."""
    with crowded():
        link = LocalLink(host(tmp_path).gpu(OPTIONS), OPTIONS)
        assert link.wait(0.001) == []
        timer = threading.Timer(0.01, link.interrupt)
        timer.start()
        assert link.wait(LIMIT_S) == []
        timer.join()
        link.close()


def test_every_thread_is_attached(tmp_path: Path) -> None:
    """Once, before its first launch; also one that has the identifier of a thread that ended."""
    gpu = host(tmp_path).gpu(OPTIONS)
    attached: list[threading.Thread] = []
    gpu.attach = lambda: attached.append(threading.current_thread())  # type: ignore[method-assign]
    link = LocalLink(gpu, OPTIONS)
    link.load(model().key, read_tables(os.dup(tables_fd("byte_bpe"))))
    slot = link.slots(model().key)[0]

    def launch() -> None:
        for _ in range(2):
            link.launch(slot, *put(slot, [b"one"]), FLAG_IDS)
            while not link.wait(0.0):
                pass

    launch()
    threads = [threading.Thread(target=launch) for _ in range(5)]
    for thread in threads:
        thread.start()
        thread.join()
    assert attached == threads
    link.close()


def test_a_long_replay_is_not_polled(tmp_path: Path) -> None:
    """Once it is known how long one takes, the thread sleeps, and looks a few times when it is due."""
    options = GpuOptions(size_classes_bytes=(LONG_BYTES + 1,))
    link = LocalLink(host(tmp_path, replay_s=0.003).gpu(options), options)
    link.load(model().key, read_tables(os.dup(tables_fd("byte_bpe"))))
    slot = link.slots(model().key)[0]
    place = link._places[slot.number]
    poll, looks = place.poll, list[int]()

    def counted(n_times: int) -> bool:
        looks.append(n_times)
        return poll(n_times)

    place.poll = counted
    for number in range(4):
        looks.clear()
        link.launch(slot, *put(slot, [b"a" * (LONG_BYTES + 1)]), FLAG_IDS)
        assert place.is_long == (number > 0)
        assert len(link.wait(LIMIT_S)) == 1
        assert number == 0 or sum(looks) <= 20
    link.close()


def test_what_a_long_replay_teaches(tmp_path: Path) -> None:
    """Naps for one are long enough four times in five: a little shorter after each that was, longer after others."""
    link = LocalLink(host(tmp_path).gpu(OPTIONS), OPTIONS)
    link.load(model().key, read_tables(os.dup(tables_fd("byte_bpe"))))
    place = link._places[link.slots(model().key)[0].number]
    place.n_bytes, of = 1000, place.prediction.of
    source, n_late = random.Random(1), 0
    place.prediction.seen(1000, 300_000, False)
    for number in range(4_000):
        predicted_ns, took_ns = int(of(1000)), int(source.gauss(300_000, 15_000))
        place.launched_ns, place.due_ns, place.is_long = 0, predicted_ns, True
        place.was_late = took_ns > predicted_ns
        n_late += place.was_late and number >= 1_000
        place.learn(max(took_ns, predicted_ns) + 10_000, AFTER_NAP)
    assert 0.1 <= n_late / 3_000 <= 0.35
    link.close()


def test_one_gpu_only() -> None:
    """A process that uses GPUs itself uses one."""
    with pytest.raises(ValueError, match="one GPU"):
        GpuRouteOptions(gpus="0,1", gpu_engine="local")


def test_closing_loads_no_more(tmp_path: Path) -> None:
    """Whoever closes waits for the tokenizer that is being loaded, and not for those that come after it."""
    gpu = host(tmp_path).gpu(OPTIONS)
    device, loaded, go_on = gpu.device, [], threading.Event()

    def slow_device(key: str, tables: Tables, options: GpuOptions) -> Device:
        loaded.append(key)
        go_on.wait(LIMIT_S)
        return device(key, tables, options)

    gpu.device = slow_device  # type: ignore[method-assign]
    engine = LocalEngine(
        GpuRouteOptions(**FAST),
        on_ready=lambda number, link: None,
        on_lost=lambda number, link, reason: None,
        make_gpu=lambda _: gpu,
    )
    engine.start()
    for family in ("byte_bpe", "split_bpe"):
        engine.add(model(family).key, model(family).data)
    until(lambda: len(loaded) == 1 and engine._orders.qsize() == 1)
    closer = threading.Thread(target=engine.close)
    closer.start()
    until(lambda: engine._orders.qsize() == 2)
    go_on.set()
    closer.join()
    assert len(loaded) == 1
