"""What goes into the next replay, decision by decision."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dispatcher.gpu.batch import FILLED_AHEAD, Former, RouteLimits
from dispatcher.gpu.fake_link import make_slots
from dispatcher.gpu.group import CANCELLED, EXPIRED, NO_SLOT, NOT_READY, Group
from dispatcher.gpu.model_queue import Batch
from gpu_core.ladder import Piece, SizeClass

SIZES = (SizeClass(100, 4), SizeClass(1_000, 16))
ALONE = 400


def group(*lengths: int, since: int = 0, count_only: bool = False, deadline_ns: int = 0) -> Group:
    """Documents of some lengths."""
    made = Group(
        "m",
        [bytes(n) for n in lengths],
        lambda _: None,
        lambda *_: None,
        count_only=count_only,
        deadline_ns=deadline_ns,
    )
    made.queued_ns = since
    return made


class Desk:
    """A former with one queue."""

    def __init__(self, n_each: int = 2, **limits: int) -> None:
        self.former = Former(RouteLimits(**{"alone_over_bytes": ALONE, "beside_documents": 1, **limits}))
        self.queue = self.former.open("m", make_slots("m", SIZES, n_each))

    def add(self, *groups: Group) -> None:
        """Queue groups."""
        for one in groups:
            self.former.add(self.queue, one)

    def next(self, now_ns: int = 0) -> Batch | None:
        """The next batch; documents alone are filled first."""
        while (reserved := self.former.reserve(now_ns)) is not None:
            self.former.filled(self.queue, reserved)
        return self.former.next(now_ns)

    def end(self, batch: Batch) -> None:
        """The replay ended and was read."""
        self.former.ended(batch)
        self.former.give_back(self.queue, batch.slot)

    def n_free(self) -> int:
        """Free slots."""
        return sum(map(len, self.queue.free))


def sizes(batch: Batch | None) -> tuple[int, int, int]:
    """Documents, bytes, and the capacity of the slot."""
    assert batch is not None
    return batch.n_documents, batch.n_bytes, batch.slot.size.capacity


def test_nothing_waits_nothing_goes() -> None:
    """An empty queue has no batch."""
    assert Desk().next() is None


def test_the_smallest_slot_that_fits_is_taken() -> None:
    """By bytes and by documents; a larger one when those are in use."""
    desk = Desk(n_each=1, max_in_flight=9)
    desk.add(group(60, 40))
    assert sizes(desk.next()) == (2, 100, 100)
    desk.add(group(1))
    assert sizes(desk.next()) == (1, 1, 1_000)
    many = Desk()
    many.add(group(1, 1, 1, 1, 1))
    assert sizes(many.next()) == (5, 5, 1_000)


def test_as_many_as_the_largest_free_slot_holds() -> None:
    """Groups are taken whole, oldest first, up to the bytes or the documents of the slot."""
    desk = Desk()
    desk.add(*[group(300) for _ in range(4)])
    assert sizes(desk.next()) == (3, 900, 1_000)
    assert sizes(desk.next()) == (1, 300, 1_000)
    documents = Desk()
    documents.add(*[group(1, 1, 1, 1, 1) for _ in range(4)])
    assert sizes(documents.next()) == (15, 15, 1_000)


def test_a_batch_is_bounded() -> None:
    """`max_batch_bytes` holds although the slot has more room, unless a single document is more."""
    desk = Desk(max_batch_bytes=350)
    desk.add(group(300), group(100), group(390))
    assert sizes(desk.next()) == (1, 300, 1_000)
    assert sizes(desk.next()) == (1, 100, 100)


def test_places_in_flight_are_bounded() -> None:
    """No more than `max_in_flight`, whatever waits; one more when one ended."""
    desk = Desk(max_in_flight=2)
    first, second = group(1), group(2)
    desk.add(first)
    one = desk.next()
    desk.add(second)
    two = desk.next()
    desk.add(group(3))
    assert desk.next() is None
    assert one is not None
    assert two is not None
    assert desk.former.n_under_way == 2
    desk.end(one)
    assert sizes(desk.next()) == (1, 3, 100)


def test_beside_a_replay_only_what_is_worth_it() -> None:
    """By documents or by bytes; another model's replay is no reason to wait."""
    desk = Desk(n_each=3, beside_documents=3, beside_bytes=50, max_in_flight=9)
    other = desk.former.open("n", make_slots("n", SIZES, 2, 100))
    desk.add(group(1))
    assert desk.next() is not None
    desk.add(group(1), group(1))
    assert desk.next() is None
    desk.former.add(other, group(1))
    assert desk.next() is not None
    desk.add(group(1))
    assert sizes(desk.next()) == (3, 3, 100)
    desk.add(group(50))
    assert sizes(desk.next()) == (1, 50, 100)


def test_a_mixed_batch_asks_for_ids() -> None:
    """Only when every group wants counts, nothing else is asked for."""
    desk = Desk(max_in_flight=1)
    desk.add(group(1, count_only=True), group(1))
    batch = desk.next()
    assert batch is not None
    assert not batch.count_only
    desk.end(batch)
    desk.add(group(1, count_only=True), group(300, 300, 300, 300, count_only=True))
    batch = desk.next()
    assert batch is not None
    assert batch.count_only


def test_a_large_group_is_split_and_goes_behind_the_others() -> None:
    """Each of its documents is in one batch; the group behind it does not wait for all of them."""
    desk = Desk(max_in_flight=9, n_each=9)
    big, small = group(*[300] * 8), group(5)
    desk.add(big, small)
    shares: list[list[tuple[Group, list[int]]]] = []
    while (batch := desk.next()) is not None:
        shares.append([(one, list(range(8)) if numbers is None else list(numbers)) for one, numbers in batch.shares])
    assert [share[0][0] for share in shares] == [big, small, big, big]
    taken = [number for share in shares for one, numbers in share for number in numbers if one is big]
    assert sorted(taken) == list(range(8))
    assert (big.n_waiting, big.waiting_bytes, desk.queue.load.waiting_bytes, desk.queue.n_waiting) == (0, 0, 0, 0)


def test_large_documents_go_alone() -> None:
    """Each has a slot of its own, one is under way at a time, and the rest of its group shares."""
    desk = Desk(max_in_flight=3)
    mixed = group(10, ALONE + 1, 20, ALONE + 2)
    desk.add(mixed)
    batches = [desk.next(), desk.next(), desk.next()]
    assert batches[2] is None
    assert sorted(sizes(batch)[1] for batch in batches[:2]) == [30, ALONE + 1]
    alone = next(batch for batch in batches[:2] if batch is not None and batch.piece)
    desk.end(alone)
    assert sizes(desk.next()) == (1, ALONE + 2, 1_000)


def test_slots_are_reserved_ahead_but_not_all() -> None:
    """Some documents alone are filled while one is under way; the other slots stay for what shares."""
    desk = Desk(n_each=6, max_in_flight=1)
    desk.add(*[group(500) for _ in range(6)])
    reserved = [desk.former.reserve(0) for _ in range(4)]
    assert [batch is not None for batch in reserved] == [True] * FILLED_AHEAD + [False] * (4 - FILLED_AHEAD)


def test_between_two_large_documents_the_others_have_a_turn() -> None:
    """Whatever they are worth, and although the large ones are older."""
    desk = Desk(n_each=3, max_in_flight=2, beside_documents=99, beside_bytes=9_999)
    desk.add(group(500), group(500, since=1))
    large = desk.next()
    desk.add(group(1, since=2))
    running = desk.next()
    desk.add(group(2, since=3))
    assert desk.next() is None
    assert large is not None
    assert running is not None
    assert running.piece is None
    desk.end(large)
    waited = desk.next()
    assert sizes(waited) == (1, 2, 100)
    desk.end(running)
    assert sizes(desk.next()) == (1, 500, 1_000)


def test_the_oldest_model_comes_first() -> None:
    """Whatever the order of the queues."""
    desk = Desk(max_in_flight=9)
    other = desk.former.open("a", make_slots("a", SIZES, 2, 100))
    desk.add(group(1, since=5))
    desk.former.add(other, group(2, since=4))
    first = desk.next()
    assert first is not None
    assert first.queue is other


def test_the_oldest_large_document_is_filled_first() -> None:
    """Of all models: none of them has the slots that are filled ahead for itself."""
    desk = Desk(n_each=9)
    other = desk.former.open("a", make_slots("a", SIZES, 2, 100))
    desk.add(*[group(500, since=number) for number in (1, 3, 4, 5)])
    desk.former.add(other, group(500, since=2))
    assert [batch.queue for batch in (desk.former.reserve(9), desk.former.reserve(9)) if batch] == [desk.queue, other]


def test_waiting_for_a_slot_is_known() -> None:
    """`starved` says so, and only then."""
    desk = Desk(n_each=1, max_in_flight=9)
    desk.add(group(300))
    assert desk.next() is not None
    assert not desk.former.starved
    desk.add(group(300))
    assert desk.next() is None
    assert desk.former.starved
    alone = Desk(n_each=1, max_in_flight=9)
    alone.add(group(300), group(500))
    assert alone.former.next(0) is not None
    assert alone.former.reserve(0) is None
    assert alone.former.starved


def test_who_is_not_wanted_leaves() -> None:
    """Cancelled and past its deadline, shared, alone or filled; each is told once and its slot is free."""
    desk = Desk(max_in_flight=1)
    cancelled, expired, kept = group(1), group(2, deadline_ns=5), group(3, deadline_ns=10)
    filled, waiting = group(500, 500, 7), group(500, 500)
    desk.add(cancelled, filled, waiting, expired, kept)
    reserved = desk.former.reserve(0)
    assert reserved is not None
    desk.former.filled(desk.queue, reserved)
    for one in (cancelled, filled, waiting):
        one.cancelled = True
    assert sizes(desk.next(now_ns=10)) == (1, 3, 100)
    assert Counter(reason for _one, reason in desk.former.unwanted) == {CANCELLED: 3, EXPIRED: 1}
    load = desk.queue.load
    assert (load.waiting_bytes, load.alone_waiting_bytes, desk.queue.n_waiting, desk.former.n_ahead) == (0, 0, 0, 0)
    assert desk.n_free() == 3


def test_what_fits_no_slot_leaves() -> None:
    """A document that is longer than the top class and was not cut, or a piece that is."""
    desk = Desk()
    desk.add(group(1_001), group(5_000))
    cut = group(2_000)
    cut.cuts = {0: (Piece(0, 0, 1_200), Piece(0, 1_200, 2_000))}
    desk.add(cut)
    assert [reason for _one, reason in desk.former.unwanted] == [NO_SLOT] * 3
    assert desk.next() is None


def test_pieces_are_batches_of_their_own() -> None:
    """One under way at a time."""
    desk = Desk(n_each=3)
    cut = group(1_700)
    cut.cuts = {0: (Piece(0, 0, 900), Piece(0, 900, 1_700))}
    desk.add(cut)
    first = desk.next()
    assert sizes(first) == (1, 900, 1_000)
    assert desk.next() is None
    assert first is not None
    desk.end(first)
    assert sizes(desk.next()) == (1, 800, 1_000)


def test_a_forgotten_model_launches_nothing() -> None:
    """What waits leaves, what is filled later too, and what is under way ends."""
    desk = Desk(max_in_flight=9)
    desk.add(group(1))
    running = desk.next()
    desk.add(group(2), group(500), group(500))
    reserved = desk.former.reserve(0)
    desk.former.forget(desk.queue)
    desk.add(group(3))
    assert reserved is not None
    assert running is not None
    desk.former.filled(desk.queue, reserved)
    desk.end(running)
    assert desk.former.next(0) is None
    assert [reason for _one, reason in desk.former.unwanted] == [NOT_READY] * 4
    assert (desk.former.n_ahead, desk.former.n_under_way, desk.queue.load.ready) == (0, 0, False)


def test_results_may_stay_while_a_slot_is_left() -> None:
    """One slot of the size or more is always for replays."""
    desk = Desk(n_each=2)
    small, large = (desk.queue.take_slot(n, 1) for n in (1, 500))
    assert small is not None
    assert large is not None
    assert desk.queue.hold(large)
    other = desk.queue.take_slot(500, 1)
    assert other is not None
    assert not desk.queue.hold(other)
    assert desk.queue.hold(small)
    desk.former.unhold(desk.queue, large)
    assert desk.queue.hold(other)


@pytest.mark.parametrize("seed", range(6))
def test_random_work_keeps_its_promises(seed: int) -> None:
    """Every document is in exactly one batch that fits its slot; no slot is lost; limits hold."""
    source = random.Random(seed)
    desk = Desk(n_each=3, max_in_flight=3, beside_documents=source.choice([1, 4]))
    groups: list[Group] = []
    under_way: list[Batch] = []
    seen: Counter[tuple[int, int]] = Counter()

    def launch(now_ns: int) -> None:
        while (batch := desk.next(now_ns)) is not None:
            under_way.append(batch)
            assert batch.n_bytes <= batch.slot.size.capacity
            assert batch.n_documents <= batch.slot.size.max_documents
            assert len(under_way) <= 3
            assert sum(other.piece is not None for other in under_way) <= 1
            if batch.piece is not None:
                seen[id(batch.piece.group), batch.piece.document] += 1
            for one, numbers in batch.shares:
                seen.update((id(one), number) for number in (range(len(one.lengths)) if numbers is None else numbers))

    for now_ns in range(1, 500):
        if source.random() < 0.5:
            made = group(*[source.choice([0, 3, 60, 200, 350, 450, 1_000]) for _ in range(source.randint(1, 12))])
            groups.append(made)
            desk.add(made)
        launch(now_ns)
        if under_way and source.random() < 0.9:
            desk.end(under_way.pop(source.randrange(len(under_way))))
    launch(500)
    while under_way:
        desk.end(under_way.pop())
        launch(501)
    assert seen == Counter((id(one), number) for one in groups for number in range(len(one.lengths)))
    assert desk.n_free() == 6
    assert (desk.queue.load.waiting_bytes, desk.queue.load.alone_waiting_bytes, desk.queue.n_waiting) == (0, 0, 0)


def test_a_long_document_goes_at_once_if_nothing_is_in_front_of_it() -> None:
    """Then it takes the slot that it would get from the queue, and its place as soon as the slot is filled."""
    desk = Desk()
    former, load = desk.former, desk.queue.load
    first = former.reserve_at_once(desk.queue, group(500))
    assert sizes(first) == (1, 500, 1_000)
    assert first is not None
    assert (former.n_ahead, load.alone_waiting_bytes, desk.n_free()) == (1, 500, 3)
    assert former.filled_at_once(first, 7)
    assert (former.n_ahead, former.n_under_way, former.n_alone_under_way) == (0, 1, 1)
    assert (load.alone_waiting_bytes, load.alone_launched_bytes, load.alone_launched_ns) == (0, 500, 7)
    second = former.reserve_at_once(desk.queue, group(600))
    assert second is not None
    assert not former.filled_at_once(second, 8), "two of them are never under way"
    desk.end(first)
    assert former.filled_at_once(second, 9)
    desk.end(second)
    assert (former.n_under_way, former.n_ahead, desk.n_free()) == (0, 0, 4)


def test_a_long_document_queues_where_something_is_in_front_of_it() -> None:
    """Or where it is not one, fits no slot, is not wanted, or no slot is left; then nothing has changed."""
    desk = Desk(n_each=1)
    cancelled = group(500)
    cancelled.cancelled = True
    for unfit in (group(500, 500), group(1_001), cancelled):
        assert desk.former.reserve_at_once(desk.queue, unfit) is None
    desk.add(group(10))
    assert desk.former.reserve_at_once(desk.queue, group(500)) is None
    assert desk.next() is not None
    first = desk.former.reserve_at_once(desk.queue, group(500))
    assert first is not None
    assert desk.former.reserve_at_once(desk.queue, group(500)) is None
    assert (desk.former.n_ahead, desk.queue.load.alone_waiting_bytes) == (1, 500)
    desk.add(group(20))
    assert not desk.former.filled_at_once(first, 1), "the other one came before"
    assert desk.former.n_ahead == 1
    desk.former.forget(desk.queue)
    assert not desk.former.filled_at_once(first, 2)
