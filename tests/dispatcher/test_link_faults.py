"""A link whose engine says nonsense, or reads nothing: the engine is lost, and no thread waits or dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.gpu.link import EngineLost, Slot
from dispatcher.gpu.messages import (
    COMPLETED,
    Fault,
    Hello,
    Load,
    Loaded,
    Progress,
    Refused,
    Report,
    Unload,
    send_order,
    send_report,
)
from dispatcher.gpu.process_link import ProcessLink
from gpu_core.layout import FLAG_IDS
from tests.engine_rig import OPTIONS, model, tables_fd

HELLO = Hello(1, 1, 1, "scripted")


class Scripted(ProcessLink):
    """A link without a process: the test speaks for the engine."""

    def says(self, *reports: Report) -> None:
        """The engine reports."""
        for report in reports:
            send_report(self._engine_control, report)
            self.receive()

    def completes(self, number: int, epoch: int, n_flagged: int = 0) -> None:
        """The engine completes a replay."""
        self._engine_launches.send(COMPLETED.pack(number, 0, epoch, 1, 1, n_flagged, 0))

    def slot(self) -> Slot:
        """The first slot of the tokenizer, which is loaded."""
        self.load(model().key, tables_fd("byte_bpe"))
        self.says(HELLO, Loaded(0, frozenset({0}), 1, 1, 1))
        return self.slots(model().key)[0]


@pytest.fixture
def link() -> Iterator[Scripted]:
    """See `Scripted`."""
    link = Scripted(OPTIONS)
    yield link
    link.close()


@pytest.mark.parametrize("places", [{4}, {0, 63}])
def test_slots_that_there_are_not(link: Scripted, places: set[int]) -> None:
    """They are nonsense, and no slot of that tokenizer is used."""
    link.load(model().key, tables_fd("byte_bpe"))
    with pytest.raises(EngineLost):
        link.says(HELLO, Loaded(0, frozenset(places), 1, 1, 1))
    assert link.lost_reason
    assert not link.slots(model().key)
    assert not link.ready


def test_a_tokenizer_before_the_device(link: Scripted) -> None:
    """Loaded before HELLO, or twice: nonsense."""
    link.load(model().key, tables_fd("byte_bpe"))
    with pytest.raises(EngineLost):
        link.says(Loaded(0, frozenset({0}), 1, 1, 1))


def test_a_tokenizer_that_is_loaded_twice(link: Scripted) -> None:
    """Its slots may be in use: nonsense."""
    link.slot()
    with pytest.raises(EngineLost):
        link.says(Loaded(0, frozenset({0}), 1, 1, 1))


def test_reports_of_tokenizers_that_nobody_asked_for(link: Scripted) -> None:
    """They may have been removed meanwhile, and are passed over."""
    link.says(HELLO, Loaded(7, frozenset({0}), 1, 1, 1), Refused(8, "no"))
    assert link.ready
    assert not link.refused


def test_a_reason_that_nobody_knows(link: Scripted) -> None:
    """It ends the engine; whoever waits is told."""
    slot = link.slot()
    link.launch(slot, 1, 1, FLAG_IDS)
    link._shared[slot.number].reasons[0] = 99
    link.completes(slot.number, 1, n_flagged=1)
    with pytest.raises(EngineLost):
        link.wait(0.0)
    assert not link.ready


def test_the_last_words_of_an_engine_that_left_orders_unread(link: Scripted) -> None:
    """They are heard, and the end after them."""
    link.load(model().key, tables_fd("byte_bpe"))
    send_report(link._engine_control, Fault(True, "no GPU"))
    link._engine_control.close()
    assert link.receive() == Fault(True, "no GPU")
    assert link.receive() is None
    assert link.lost_reason == "no GPU"


@pytest.mark.parametrize(("number", "epoch"), [(0, 2), (1, 1), (77, 1)])
def test_completions_of_what_was_not_launched(link: Scripted, number: int, epoch: int) -> None:
    """Of another launch, slot or tokenizer: nonsense."""
    link.launch(link.slot(), 1, 1, FLAG_IDS)
    link.completes(number, epoch)
    with pytest.raises(EngineLost):
        link.wait(0.0)


def test_a_launch_of_a_slot_that_was_given_back(link: Scripted) -> None:
    """Its tokenizer was removed, or the link closed, between two steps of the launching thread: lost, not an error."""
    slot = link.slot()
    link._shared.clear()
    with pytest.raises(EngineLost):
        link.launch(slot, 1, 1, FLAG_IDS)


def test_orders_never_wait(link: Scripted) -> None:
    """An engine that reads nothing is an error for whoever gives one order too many, and not a thread that hangs."""

    def give_orders() -> None:
        for number in range(100_000):
            send_order(link.control, Unload(number))

    with pytest.raises(BlockingIOError):
        give_orders()
    with pytest.raises(BlockingIOError):
        send_order(link.control, Load(1, model().key, tables_fd("byte_bpe"), tables_fd("byte_bpe")))


def test_loads_are_timed_one_after_the_other(link: Scripted) -> None:
    """A tokenizer that waits for others to be loaded is not late while the engine gets on."""
    for family in ("byte_bpe", "split_bpe"):
        link.load(model(family).key, tables_fd(family))
    for sent in link._models.values():
        sent.sent_s -= 100.0
    link.says(HELLO)
    link._heard_s -= 100.0
    assert link.silence_s() > 99.0
    link.says(Progress())
    assert 0.0 < link.silence_s() < 99.0
    link.says(Loaded(0, frozenset({0}), 1, 1, 1), Loaded(1, frozenset({0}), 1, 1, 1))
    assert link.silence_s() == 0.0
