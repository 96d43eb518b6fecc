"""A job: one admitted request on its way through a worker, from the bytes of its body to the bytes of its answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from dispatcher.admission import Slot, Uncounted
from dispatcher.errors import Cancelled, DeadlineExceeded
from dispatcher.request import EncodedDocument, EncodeRequest, Request, Result
from gpu_core.errors import SidetokError

if TYPE_CHECKING:
    from dispatcher.gpu.group import Group
    from dispatcher.spell import Spell

A = TypeVar("A")


@dataclass(slots=True)
class Partial:
    """What the GPU route did of a request; a worker does the rest."""

    request: EncodeRequest
    results: list[EncodedDocument | None]
    """By document; None for those that are still to be encoded."""
    doubtful: Sequence[int] = ()
    """Of those, the documents that a GPU may answer once they are rewritten (`dispatcher.bundle.SecondTry`)."""


class Job(Generic[A]):
    """One request. `read`, `write` and `fail` run on a worker; `on_done` runs on the event loop, exactly once.

    `on_done` gets the answer and the error, of which one may be None: a late worker may still write its own to the job.
    `send(job)`, if there is one, may be called by the worker that wrote the answer, to hand it to the client at once.
    """

    __slots__ = (
        "_answer_claim",
        "_claim",
        "abandoned",
        "answer",
        "answered_ns",
        "deadline_ns",
        "error",
        "fail",
        "flow",
        "group",
        "is_direct",
        "is_long",
        "model",
        "n_tokens",
        "on_done",
        "partial",
        "read",
        "route",
        "send",
        "settled",
        "slot",
        "spell",
        "submitted_ns",
        "write",
    )

    def __init__(
        self,
        read: Callable[[], Request],
        write: Callable[[Request, Result], A],
        fail: Callable[[SidetokError], A],
        on_done: Callable[[A | None, SidetokError | None], Any],
        slot: Slot | Uncounted,
        deadline_ns: int,
        flow: str = "",
        send: Callable[[Job[A]], None] | None = None,
    ) -> None:
        self.read = read
        self.write = write
        self.fail = fail
        self.on_done = on_done
        self.send = send
        self.slot = slot
        self.deadline_ns = deadline_ns
        """On the clock of `time.monotonic_ns`; 0 = never."""
        self.flow = flow
        """Whose job it is, for `dispatcher.flow_queue`."""
        self.submitted_ns = time.monotonic_ns()
        self.model = ""
        """The name of the model, known once the body was read."""
        self.route = "cpu"
        """Where it is answered; documents that the GPU does not answer do not change it."""
        self.group: Group | None = None
        """What is on the GPU route of this job alone."""
        self.spell: Spell | None = None
        """Told what the answer took."""
        self.partial: Partial | None = None
        """Set when it comes back from the GPU route."""
        self.n_tokens = 0
        self.answer: A | None = None
        self.error: SidetokError | None = None
        self.answered_ns = 0
        """When a worker began to hand the answer to the client (`time.monotonic_ns`); 0 = that is left to `on_done`."""
        self.abandoned = False
        """Nobody waits for the answer any more: the worker stops at the next chance."""
        self.is_direct = False
        """`on_done` runs where the job ends, and not on the event loop."""
        self.is_long = False
        """Expected to keep a worker busy for longer than a wake-up takes (`dispatcher.work_queue`)."""
        self.settled = False
        """`on_done` was called."""
        self._claim = threading.Lock()
        self._answer_claim = None if send is None else threading.Lock()

    def claim(self) -> bool:
        """Take the job out of the queue; true for exactly one caller: a worker, or whoever cancels it."""
        return self._claim.acquire(blocking=False)

    def claim_answer(self) -> bool:
        """Take the right to answer; true for one caller: the worker that sends, or who says that it is too late."""
        return self._answer_claim is None or self._answer_claim.acquire(blocking=False)

    def forget(self) -> None:
        """Let go of the body: a claimed job may stay in the queue until a worker comes by."""
        self.read = self.write = self.fail = _forgotten

    def check(self) -> None:
        """Raise when the answer is no longer wanted. Called between documents and stages."""
        if self.abandoned:
            raise Cancelled("The client went away.")
        if self.deadline_ns and time.monotonic_ns() > self.deadline_ns:
            raise deadline_exceeded()


def _forgotten(*_: object) -> NoReturn:
    raise Cancelled("The job was dropped.")


def deadline_exceeded() -> DeadlineExceeded:
    """The error of a request whose deadline passed."""
    return DeadlineExceeded("The deadline of the request passed; send less text at once, or allow more time.")
