"""A group: documents of one model that are submitted together and answered together.

The caller is told once, by one of two callbacks:

    on_done(group)                  every document has ids (or a count), or a reason in `needs_cpu`
    on_fallback(group, reason)      no answer from here: the group runs elsewhere, or nowhere when it was given up
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatcher.gpu.held_ids import HeldIds
from dispatcher.gpu.reserved_text import Lease
from gpu_core.errors import SidetokError
from gpu_core.ladder import Piece

log = logging.getLogger("sidetok.gpu_route")

Text = bytes | memoryview
"""One document: valid UTF-8."""
Ids = bytes | HeldIds
"""Packed little-endian uint32, 4 bytes per id."""

DECIMALS_FROM = 1 << 14
"""Bytes of a document whose ids the device writes as decimal numbers: those of a shorter one take the host little."""

ENGINE_LOST = "engine lost"
ENGINE_SILENT = "engine silent"
NOT_READY = "not ready"
NO_SLOT = "no slot"
CANCELLED = "cancelled"
EXPIRED = "expired"
UNREADABLE = "unreadable"
FALLBACK_REASONS = (ENGINE_LOST, ENGINE_SILENT, NOT_READY, NO_SLOT, UNREADABLE, CANCELLED, EXPIRED)
"""Why a group leaves without an answer. The last two: nobody waits for it any more."""
SETTLED = "settled"
"""Why what is left of a group leaves when its caller was told already."""


class Group:
    """Documents on their way. Made by any thread; the callbacks run on the thread that settles it, outside all locks.

    `on_done` runs on the route's thread, or in `submit` when nothing has to be replayed. `on_fallback` may run in
    `submit`, too.
    """

    __slots__ = (
        "cancelled",
        "count_only",
        "cuts",
        "deadline_ns",
        "decimals",
        "documents",
        "ids",
        "kind",
        "lease",
        "lengths",
        "model_key",
        "n_bytes",
        "n_left",
        "n_tokens",
        "n_waiting",
        "needs_cpu",
        "next",
        "normal_form",
        "on_done",
        "on_fallback",
        "order",
        "pieces",
        "prepared_ns",
        "queued_ns",
        "replayed_ns",
        "settled",
        "submitted_ns",
        "waiting_bytes",
        "wants_decimals",
    )

    def __init__(
        self,
        model_key: str,
        documents: Sequence[Text],
        on_done: Callable[[Group], object],
        on_fallback: Callable[[Group, str], object],
        count_only: bool = False,
        kind: str = "ascii",
        deadline_ns: int = 0,
        *,
        normal_form: bool = False,
        wants_decimals: bool = False,
    ) -> None:
        """`kind` is the content kind for the observed costs; `deadline_ns` on the route's clock, 0 = never.

        `normal_form`: the documents were rewritten to normal form, which the device need not check (`gpu_core`).
        `wants_decimals`: ids of long documents are to be written as decimal numbers, too.
        """
        self.model_key = model_key
        self.documents = documents
        self.on_done = on_done
        self.on_fallback = on_fallback
        self.count_only = count_only
        self.kind = kind
        self.deadline_ns = deadline_ns
        self.normal_form = normal_form
        self.lengths = lengths = [*map(len, documents)]
        self.n_bytes = self.waiting_bytes = sum(lengths)
        """`waiting_bytes` are those of the documents that are counted in `n_waiting`."""
        self.wants_decimals = wants_decimals and max(lengths, default=0) >= DECIMALS_FROM
        self.cancelled = self.settled = False
        """`cancelled` may be set from any thread: what is not launched yet leaves, with the reason `CANCELLED`.
        `settled`: one of the callbacks was or is being called."""
        self.submitted_ns = self.replayed_ns = self.prepared_ns = 0
        """When it came, and when all of its results were at hand; 0 = nothing was replayed for it. And what the caller
        took from the choice of the route until it submitted the group."""
        self.ids: list[Ids | None] = []
        """By document, once done; None for those in `needs_cpu`. Empty with `count_only`."""
        self.decimals: dict[int, bytes] = {}
        """Ids of documents as decimal numbers with commas between them, once done: those that the device wrote."""
        self.n_tokens: list[int] = []
        """By document, once done; 0 for those in `needs_cpu`."""
        self.lease: Lease | None = None
        """Of the slot that the only document lies in already."""
        self.needs_cpu: dict[int, str] = {}
        """Documents that the device does not answer, with the reason."""

        # The fields from here on belong to the route.
        self.n_left = self.n_waiting = len(lengths)
        """Documents and pieces of documents that are still to come; and of those that share batches with others, the
        ones that are not launched yet."""
        self.order: list[int] | range | None = None
        """Documents that share batches, if these are not simply all of them, and `next`, the first one waiting."""
        self.next = self.queued_ns = 0
        """`queued_ns`: when it took its place in the queue."""
        self.cuts: dict[int, tuple[Piece, ...]] | None = None
        """Documents that are longer than any slot, and where they are cut."""
        self.pieces: dict[int, list[bytes | None]] = {}
        """Ids of the pieces of those, as far as they are there."""

    def why_unwanted(self, now_ns: int) -> str:
        """The reason why it should not be launched any more; empty when it should."""
        if self.cancelled:
            return CANCELLED
        if self.deadline_ns and now_ns > self.deadline_ns:
            return EXPIRED
        return SETTLED if self.settled else ""


@dataclass(slots=True)
class EncodedGroup:
    """Results by document."""

    ids: list[Ids]
    """Packed little-endian uint32: bytes, or for many ids a view of memory that the GPU wrote (see `HeldIds`).

    Empty with `count_only`.
    """
    n_tokens: list[int]
    route: str
    """`gpu`, or `cpu` when nothing came from a GPU."""


OnDone = Callable[[EncodedGroup | None, SidetokError | None], object]


def answer(callback: Callable[..., object], group: Group, *reason: str) -> None:
    """Call one of the callbacks of a group; one group must not keep the others from their answers."""
    try:
        callback(group, *reason)
    except Exception as error:
        log.error("a result of the GPU route could not be handed over", extra={"error": type(error).__name__})
    # Callers and their groups refer to each other, and results may hold a slot until nothing refers to them.
    group.on_done = group.on_fallback = _answered


def _answered(*_: object) -> None:
    """The callbacks of a group that was answered."""
