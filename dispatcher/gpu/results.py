"""From a completed replay to the results of groups: one copy of ids for each document, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

from dispatcher.gpu.group import DECIMALS_FROM, Group, Ids
from dispatcher.gpu.held_ids import Hold, Holds, held_ids
from dispatcher.gpu.link import Completion, Slot
from dispatcher.gpu.model_queue import Alone, Batch, ModelQueue


class Reader:
    """Reads results out of slots.

    `may_hold(queue, slot)`: whether a slot may be kept from the next batch for handed-out views. `let_go(queue, slot,
    was_held)`: called once for each slot, when its results were read and all its views are gone, from any thread.
    """

    def __init__(
        self,
        hold_from_bytes: int,
        may_hold: Callable[[ModelQueue, Slot], bool],
        let_go: Callable[[ModelQueue, Slot, bool], None],
        n_views: int = 0,
    ) -> None:
        self.n_read, self.n_native = n_views, 0
        """Documents whose ids were not copied, after so many; and those that C handed out."""
        self.hold_from = hold_from_bytes
        self._may_hold, self._let_go = may_hold, let_go

    @property
    def n_views(self) -> int:
        """Documents whose ids were not copied."""
        return self.n_read + self.n_native

    def read(self, batch: Batch, completion: Completion) -> list[Group]:
        """Hand results to the groups of a batch; the groups that are complete now."""
        n_documents = batch.n_documents
        if batch.wants_decimals:
            _give_decimals(batch, completion.slot)
        if n_documents == 1 and not completion.needs_cpu:
            piece = batch.piece
            group, numbers = batch.shares[0] if piece is None else (piece.group, piece.number)
            if numbers is None and len(group.lengths) == 1:
                return self._read_one(batch, group, completion)
        first_tokens: list[int] = completion.slot.document_tokens[: n_documents + 1].tolist()
        counts = [end - begin for begin, end in pairwise(first_tokens)]
        ids, holds = self._ids(batch, completion, first_tokens, counts)
        if batch.piece is not None:
            finished = _give_piece(batch.piece, ids[0], counts[0], completion.needs_cpu.get(0))
        else:
            finished = _give_shares(batch.shares, ids, counts, completion.needs_cpu)
        if holds is None and batch.lease is None:
            self._let_go(batch.queue, batch.slot, False)
        return finished

    def _read_one(self, batch: Batch, group: Group, completion: Completion) -> list[Group]:
        """The same for a group of one document that was answered."""
        n_tokens, slot, lease = completion.n_tokens, completion.slot, batch.lease
        group.n_tokens = [n_tokens]
        group.n_left = 0
        is_held = lease is not None
        if not batch.count_only:
            hold: object = None
            if n_tokens << 2 >= self.hold_from:
                if lease is not None:
                    hold = lease
                elif is_held := self._may_hold(batch.queue, slot):
                    hold = Hold(Holds(1, partial(self._let_go, batch.queue, slot, True)))
            if hold is None:
                group.ids = [slot.ids[:n_tokens].tobytes()]
            else:
                self.n_read += 1
                group.ids = [held_ids(slot.id_bytes[: n_tokens << 2], hold)]
        if not is_held:
            self._let_go(batch.queue, slot, False)
        return [group]

    def _ids(
        self, batch: Batch, completion: Completion, first_tokens: list[int], counts: list[int]
    ) -> tuple[Sequence[Ids | None], Holds | None]:
        """Ids of each document of the batch."""
        slot = completion.slot
        if batch.count_only or batch.lease is not None:  # what lies in a leased slot alone and was answered went before
            return [None] * batch.n_documents, None
        if completion.n_tokens << 2 >= self.hold_from and (views := self._views_of(batch, completion, counts)):
            # Not the batch: its groups refer to the views, and the views would never be let go.
            holds = Holds(len(views), partial(self._let_go, batch.queue, slot, True))
            self.n_read += len(views)
            return [
                held_ids(slot.id_bytes[begin << 2 : end << 2], Hold(holds))
                if document in views
                else slot.ids[begin:end].tobytes()
                for document, (begin, end) in enumerate(pairwise(first_tokens))
            ], holds
        all_ids = slot.ids
        return [all_ids[begin:end].tobytes() for begin, end in pairwise(first_tokens)], None

    def _views_of(self, batch: Batch, completion: Completion, counts: list[int]) -> set[int]:
        """Documents of the batch whose ids stay where they are."""
        if batch.piece is not None and batch.piece.number is not None:
            return set()
        wanted = {
            document
            for document, count in enumerate(counts)
            if count << 2 >= self.hold_from and document not in completion.needs_cpu
        }
        if not wanted or not self._may_hold(batch.queue, batch.slot):
            return set()
        return wanted


def _give_shares(
    shares: list[tuple[Group, Sequence[int] | None]],
    ids: Sequence[Ids | None],
    counts: list[int],
    needs_cpu: Mapping[int, str],
) -> list[Group]:
    finished: list[Group] = []
    first = 0
    for group, numbers in shares:
        if numbers is None:
            last = first + len(group.lengths)
            group.n_tokens = counts[first:last]
            if not group.count_only:
                group.ids = [*ids[first:last]]
            n_given = last - first
        else:
            last = first + len(numbers)
            _prepare(group)
            for number, at in zip(numbers, range(first, last), strict=True):
                group.n_tokens[number] = counts[at]
                if not group.count_only:
                    group.ids[number] = ids[at]
            n_given = len(numbers)
        if needs_cpu:
            for at in needs_cpu.keys() & range(first, last):
                _needs_cpu(group, at - first if numbers is None else numbers[at - first], needs_cpu[at])
        first = last
        group.n_left -= n_given
        if not group.n_left:
            finished.append(group)
    return finished


def _give_piece(piece: Alone, ids: Ids | None, count: int, reason: str | None) -> list[Group]:
    group, document = piece.group, piece.document
    _prepare(group)
    if reason is not None:
        _needs_cpu(group, document, reason)
    elif document not in group.needs_cpu:
        group.n_tokens[document] += count
        if not group.count_only:
            if piece.number is None:
                group.ids[document] = ids
            else:
                assert isinstance(ids, bytes)
                _join(group, document, piece.number, ids)
    group.n_left -= 1
    return [] if group.n_left else [group]


def _join(group: Group, document: int, number: int, ids: bytes) -> None:
    """Put the ids of a piece to those of the others, which may end in any order."""
    assert group.cuts is not None
    pieces = group.pieces.setdefault(document, [None] * len(group.cuts[document]))
    pieces[number] = ids
    there = [part for part in pieces if part is not None]
    if len(there) == len(pieces):
        group.ids[document] = b"".join(there)
        del group.pieces[document]


def _give_decimals(batch: Batch, slot: Slot) -> None:
    """Copy what the device wrote as decimal numbers, for long documents whose group wants it."""
    starts: list[int] = slot.document_decimals[: batch.n_documents + 1].tolist()
    room = len(slot.decimals)
    shares = batch.shares if batch.piece is None else [(batch.piece.group, (batch.piece.document,))]
    first = 0
    for group, numbers in shares:
        documents = range(len(group.lengths)) if numbers is None else numbers
        if group.wants_decimals:
            for at, document in enumerate(documents, first):
                if group.lengths[document] >= DECIMALS_FROM and starts[at] < starts[at + 1] <= room:
                    # Without the comma behind the last one.
                    group.decimals[document] = bytes(slot.decimals[starts[at] : starts[at + 1] - 1])
        first += len(documents)


def _prepare(group: Group) -> None:
    """Make room for results that come one by one."""
    if not group.n_tokens:
        n_documents = len(group.lengths)
        group.n_tokens = [0] * n_documents
        if not group.count_only:
            group.ids = [None] * n_documents


def _needs_cpu(group: Group, document: int, reason: str) -> None:
    group.needs_cpu[document] = reason
    group.n_tokens[document] = 0
    if not group.count_only:
        group.ids[document] = None
