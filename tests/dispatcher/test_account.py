"""What replays took: told to the costs while it says something new, and counted all the same."""

from __future__ import annotations

from dispatcher.gpu.account import MEASURED, Account, Clocks
from dispatcher.gpu.fake_link import DEFAULT_SIZES, make_slots
from dispatcher.gpu.group import Group
from dispatcher.gpu.link import Completion
from dispatcher.gpu.model_queue import Batch, ModelQueue
from dispatcher.gpu.replay import Replay
from dispatcher.gpu.route_tally import RouteTally
from tests.dispatcher.route_rig import MODEL, US

QUIET_NS = 100 * US


class Desk:
    """An account of one model, whose costs want to hear nothing for a while after each replay."""

    def __init__(self) -> None:
        self.told: list[Replay] = []
        self.cpu_ns = 0
        self.n_looks = 0
        self.tally = RouteTally()
        self.account = Account(Clocks(lambda: 0, self._cpu), self.tally, self._on_replay)
        self._queue = self._new_queue()
        self.now_ns = 0

    def reload(self) -> None:
        """The model goes and comes again."""
        self._queue.is_forgotten = True
        self.tally.forget(MODEL)
        self._queue = self._new_queue()

    def batch(self, *documents: bytes, kind: str = "ascii") -> Batch:
        """A batch of one group."""
        group = Group(MODEL, documents, lambda group: None, lambda group, reason: None, kind=kind)
        slot = self._queue.free[0][0]
        return Batch(self._queue, slot, group.n_bytes, len(documents), False, [(group, None)])

    def end(self, batch: Batch, needs_cpu: dict[int, str] | None = None, after_ns: int = 1) -> None:
        """A replay ends, so long after the one before it."""
        self.now_ns += after_ns
        self.account.begin_turn(True)
        self.account.were_read(1)
        self.account.ended([(batch, Completion(batch.slot, 1, 7, 3, needs_cpu or {}))], self.now_ns)
        self.account.end_turn()

    def _new_queue(self) -> ModelQueue:
        return ModelQueue(MODEL, make_slots(MODEL, DEFAULT_SIZES, 1, 0), 1 << 18, 1 << 20)

    def _cpu(self) -> int:
        self.n_looks += 1
        self.cpu_ns += US
        return self.cpu_ns

    def _on_replay(self, replay: Replay) -> int:
        self.told.append(replay)
        return self.now_ns + QUIET_NS


def test_replays_that_say_nothing_new_are_only_counted() -> None:
    """Of the same kind and sizes, until the costs want to hear again."""
    desk = Desk()
    for _ in range(3):
        desk.end(desk.batch(bytes(1000)))
    assert len(desk.told) == 1
    desk.end(desk.batch(bytes(1000)), after_ns=QUIET_NS)
    assert len(desk.told) == 2
    snapshot = desk.tally.snapshot(True, 0, 0, 0, 0)
    assert sum(row.times.n for row in snapshot.replays.values()) == snapshot.batch_documents.sum == 4
    assert snapshot.engine_cpu_ns == 4 * 3


def test_other_kinds_and_sizes_are_news() -> None:
    """By the size of the replay and of its documents."""
    desk = Desk()
    batches = [desk.batch(bytes(1000)), desk.batch(bytes(1000), kind="wide"), desk.batch(bytes(4000))]
    batches.append(desk.batch(*[bytes(100)] * 10))
    for batch in batches * 2:
        desk.end(batch)
    assert [(replay.kind, replay.n_bytes, replay.n_documents) for replay in desk.told] == [
        ("ascii", 1000, 1),
        ("wide", 1000, 1),
        ("ascii", 4000, 1),
        ("ascii", 1000, 10),
    ]


def test_nothing_is_kept_of_a_model_that_goes() -> None:
    """When it comes again its replays are news; one that was under way meanwhile counts with those of all that went."""
    desk = Desk()
    desk.end(desk.batch(bytes(1000)))
    under_way = desk.batch(bytes(1000))
    desk.reload()
    desk.end(under_way)
    desk.end(desk.batch(bytes(1000)))
    assert [replay.kind for replay in desk.told] == ["ascii", "ascii"]
    snapshot = desk.tally.snapshot(True, 0, 0, 0, 0)
    assert {key.model_key: row.times.n for key, row in snapshot.replays.items()} == {"": 2, MODEL: 1}


def test_what_is_left_unanswered_is_always_told() -> None:
    """Else the costs would see more or less of it than there is."""
    desk = Desk()
    for _ in range(3):
        desk.end(desk.batch(b"ab", b"cd"), needs_cpu={1: "hard"})
    assert [replay.n_unanswered for replay in desk.told] == [1, 1, 1]
    assert desk.tally.snapshot(True, 0, 0, 0, 0).needs_cpu == {"hard": 3}


def test_cpu_clocks_are_looked_at_now_and_then() -> None:
    """In one of four turns, whose time is taken for that of the others."""
    desk = Desk()
    for _ in range(4 * MEASURED):
        desk.end(desk.batch(b"ab"))
    assert desk.n_looks <= 4 * 3
    assert desk.tally.snapshot(True, 0, 0, 0, 0).deliver_cpu_ns == 4 * MEASURED * US
