"""Second replays on a GPU that the process uses itself: by whom they are launched, how they are waited for, faults."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.gpu.link import EngineLost
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.local_place import Place
from dispatcher.gpu.table_builder import read_tables
from gpu_core.errors import DeviceFault
from gpu_core.host_device import HostDevice, HostGpu
from gpu_core.layout import FLAG_IDS
from gpu_core.waiting import Prediction
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import LIMIT_S, OPTIONS, model, put, tables_fd

SLOT = cast(Any, SimpleNamespace(number=0))


class Clock:
    """Time that passes where the test says so, and naps."""

    def __init__(self) -> None:
        self.now_ns, self.ends = 1_000_000_000, list[int]()

    def perf_counter_ns(self) -> int:
        """Now; a look takes a moment."""
        self.now_ns += 100
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Until then, at once."""
        self.now_ns += round(seconds * 1e9)
        self.ends.append(self.now_ns)


class TimedContext:
    """Both of its replays take 150 us, and 80 us before that to be launched."""

    def __init__(self, clock: Clock, fault: str = "", at_once: bool = False) -> None:
        """`fault`: why the second one cannot be launched; `at_once`: there is only that."""
        self._clock, self._fault, self._is_first = clock, fault, not at_once
        self.in_normal_form, self.end_ns = at_once, 0

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """Leaves a document."""
        self._clock.now_ns += 80_000
        self.end_ns = self._clock.now_ns + 150_000

    def launch_normalized(self) -> bool:
        """Answers it."""
        if self._fault:
            raise DeviceFault(self._fault)
        self._is_first, self.in_normal_form = False, True
        self.launch(0, 0, 0, False)
        return True

    def poll(self, n_times: int) -> bool:
        """Whether it is over."""
        return self._clock.perf_counter_ns() >= self.end_ns

    def any_flagged(self) -> bool:
        """Of the first one."""
        return self._is_first

    def n_tokens(self) -> int:
        """Some."""
        return 3


def timed_link(monkeypatch: pytest.MonkeyPatch, clock: Clock, context: TimedContext) -> LocalLink:
    """One slot, and all that is known of its replays."""
    for module in ("local_link", "local_place"):
        monkeypatch.setattr(f"dispatcher.gpu.{module}.time", clock)
    link = LocalLink(HostGpu(lambda key, tables: HostDevice(lambda document: 0)), OPTIONS)
    predictions = Prediction(), Prediction()
    for prediction in predictions:
        prediction.seen(1000, 150_000, False)
    link._places[0] = Place(SLOT, cast(Any, context), predictions)
    return link


def test_a_nap_for_a_second_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when that is due, however long the launch took; the route hears once, of the time of both."""
    clock = Clock()
    context = TimedContext(clock)
    link = timed_link(monkeypatch, clock, context)
    link.launch(SLOT, 1000, 1, FLAG_IDS)
    (completion,) = link.wait(LIMIT_S)
    assert completion.n_second == 1
    assert len(clock.ends) == 2
    assert clock.ends[1] <= context.end_ns
    assert 460_000 <= completion.replay_ns <= 462_000
    link.close()


def test_a_nap_for_normal_form_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is known of such replays, and from the end of its launch, which may have taken memory; as is learned."""
    clock = Clock()
    context = TimedContext(clock, at_once=True)
    link = timed_link(monkeypatch, clock, context)
    place = link._places[0]
    first, of_normal_form = place.predictions
    first.seen(1000, 20_000, False)
    before = first.of(1000)
    link.launch(SLOT, 1000, 1, FLAG_IDS)
    assert place.prediction is of_normal_form
    assert 150_000 <= place.due_ns - (context.end_ns - 150_000) <= 150_200
    (completion,) = link.wait(LIMIT_S)
    assert (completion.n_second, len(clock.ends)) == (0, 1)
    assert 230_000 <= completion.replay_ns <= 232_000
    assert first.of(1000) == before
    assert 149_000 <= of_normal_form.of(1000) <= 151_000
    link.close()


def test_a_second_replay_that_cannot_be_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is lost, as for any other fault."""
    clock = Clock()
    link = timed_link(monkeypatch, clock, TimedContext(clock, "it fell off the bus"))
    link.launch(SLOT, 1000, 1, FLAG_IDS)
    with pytest.raises(EngineLost, match="it fell off the bus"):
        link.wait(LIMIT_S)
    assert link.lost_reason == "it fell off the bus"
    link.close()


def test_whoever_waits_is_attached_before_a_second_replay(tmp_path: Path) -> None:
    """It launches it, and may never have launched anything."""
    path, which = tmp_path / "split.json", model("split_bpe")
    path.write_bytes(which.data)
    gpu = HostEngine({which.key: str(path)}, quick_check=True, normalizes=True).gpu(OPTIONS)
    attached: list[threading.Thread] = []
    gpu.attach = lambda: attached.append(threading.current_thread())  # type: ignore[method-assign]
    link = LocalLink(gpu, OPTIONS)
    link.load(which.key, read_tables(os.dup(tables_fd("split_bpe"))))
    slot = link.slots(which.key)[0]
    link.launch(slot, *put(slot, ["cafe\u0301".encode()]), FLAG_IDS)
    n_second: list[int] = []
    thread = threading.Thread(target=lambda: n_second.extend(done.n_second for done in link.wait(LIMIT_S)))
    thread.start()
    thread.join(LIMIT_S)
    assert (n_second, attached) == ([1], [thread])
    link.close()
