"""The wait of the only long replay: naps until it is due, and leaves the rest to the ordinary wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatcher.gpu.link import Slot
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.local_place import LONG_BYTES, LONG_EARLY, LONG_LEARNS, LONG_STEPS, Place
from gpu_core.host_device import HostDevice, HostGpu
from gpu_core.layout import FLAG_IDS, REASON_NOT_NORMAL
from gpu_core.waiting import Prediction
from tests.dispatcher.test_local_second_replays import Clock
from tests.engine_rig import OPTIONS

N_BYTES = LONG_BYTES + 1
PREDICTED_NS = 80_000
TIMEOUT_S = 1.0


class Context:
    """Its replays take as long as it says; launching takes no time."""

    in_normal_form = False

    def __init__(self, clock: Clock) -> None:
        self._clock, self.took_ns, self.end_ns, self.is_flagged = clock, PREDICTED_NS, 0, False
        self.looks = 0

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """See `ExecutionContext`."""
        self.end_ns, self.looks = self._clock.now_ns + self.took_ns, 0

    def poll(self, n_times: int) -> bool:
        """See `ExecutionContext`."""
        self.looks += 1
        return self._clock.now_ns >= self.end_ns

    def alive(self) -> None:
        """It is."""

    def any_flagged(self) -> bool:
        """See `ExecutionContext`."""
        return self.is_flagged

    def launch_normalized(self) -> bool:
        """Never."""
        return False

    def reasons(self, n_documents: int) -> NDArray[np.uint8]:
        """See `ExecutionContext`."""
        return np.array([REASON_NOT_NORMAL], np.uint8)

    def n_tokens(self) -> int:
        """Some."""
        return 7


class Link:
    """A link with two slots, and a time for long replays that was learned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        for module in ("local_link", "local_place"):
            monkeypatch.setattr(f"dispatcher.gpu.{module}.time", self.clock)
        self.link = LocalLink(HostGpu(lambda key, tables: HostDevice(lambda document: 0)), OPTIONS)
        self.prediction = Prediction()
        self.prediction.seen(N_BYTES, PREDICTED_NS, False)
        self.contexts = [Context(self.clock) for _ in range(2)]
        self.slots = [cast(Slot, SimpleNamespace(number=number)) for number in range(2)]
        for slot, context in zip(self.slots, self.contexts, strict=True):
            predictions = self.prediction, Prediction()
            self.link._places[slot.number] = Place(slot, cast(Any, context), predictions)

    def launch(self, number: int = 0, n_bytes: int = N_BYTES) -> None:
        """A replay of a slot."""
        self.link.launch(self.slots[number], n_bytes, 1, FLAG_IDS)

    def wait_one(self, number: int = 0, timeout_s: float = TIMEOUT_S) -> int:
        """See `LocalLink`."""
        return self.link.wait_one(number, timeout_s)

    @property
    def predicted_ns(self) -> float:
        """Of long replays."""
        return self.prediction.of(N_BYTES)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    """A link."""
    return Link(monkeypatch)


def test_one_nap_and_one_look(link: Link) -> None:
    """As long as predicted; nothing is left of the replay."""
    link.launch()
    began_ns = link.clock.now_ns
    assert link.wait_one() == 7
    assert link.contexts[0].looks == 1
    assert len(link.clock.ends) == 1
    assert 0 <= link.clock.now_ns - began_ns - PREDICTED_NS < 1_000
    assert not link.link.is_busy


def test_naps_that_were_long_enough_become_shorter(link: Link) -> None:
    """One in a few says so, for as many."""
    before = link.predicted_ns
    for _ in range(LONG_LEARNS):
        assert link.predicted_ns == before
        link.contexts[0].took_ns = PREDICTED_NS // 2
        link.launch()
        assert link.wait_one() == 7
    assert link.predicted_ns == pytest.approx(before * (1 - LONG_LEARNS * LONG_EARLY / 2), rel=1e-3)


def test_a_nap_that_was_too_short(link: Link) -> None:
    """Is followed by parts of it, and the next one is longer."""
    link.contexts[0].took_ns = PREDICTED_NS * 9 // 8 - 5_000
    link.launch()
    assert link.wait_one() == 7
    assert len(link.clock.ends) == 2
    assert link.predicted_ns > PREDICTED_NS


def _flagged(link: Link) -> None:
    link.contexts[0].is_flagged = True
    link.launch()


def _beside_another(link: Link) -> None:
    link.launch()
    link.launch(1)


def _another(link: Link) -> None:
    link.launch(1)


def _short(link: Link) -> None:
    link.launch(n_bytes=1000)


def _interrupted(link: Link) -> None:
    link.launch()
    link.link.interrupt()


def _lost(link: Link) -> None:
    link.launch()
    link.link.kill("because")


def _far_too_late(link: Link) -> None:
    link.contexts[0].took_ns = PREDICTED_NS * (LONG_STEPS + 1)
    link.launch()


def _none(link: Link) -> None:
    pass


@pytest.mark.parametrize(
    "launch", [_flagged, _beside_another, _another, _short, _interrupted, _lost, _far_too_late, _none]
)
def test_what_is_left_to_the_ordinary_wait(link: Link, launch: Callable[[Link], None]) -> None:
    """All of it is still there."""
    launch(link)
    was_busy = link.link.is_busy
    assert link.wait_one() == -1
    assert link.link.is_busy == was_busy
    if launch in (_flagged, _far_too_late, _short, _another, _beside_another):
        completions = link.link.wait(TIMEOUT_S)
        while link.link.is_busy:
            completions += link.link.wait(TIMEOUT_S)
        assert len(completions) == 1 + (launch is _beside_another)


def test_not_longer_than_it_may(link: Link) -> None:
    """Somebody has something else to do before the replay is due."""
    link.launch()
    assert link.wait_one(timeout_s=PREDICTED_NS * 0.5e-9) == -1
    assert link.clock.ends == []
