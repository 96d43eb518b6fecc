"""What the replays of one engine took: measured where it costs little, noted for metrics, told to observed costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dispatcher.gpu.link import Completion
from dispatcher.gpu.model_queue import Batch
from dispatcher.gpu.replay import Replay
from dispatcher.gpu.route_tally import RouteTally

MEASURED = 16
"""CPU time is read in one of so many turns and launches, and taken to be the same in the others: each look at the clock
is a system call."""
MEASURED_BYTES = 1 << 16
"""But for launches of more text, whose copy takes longer than all else."""

OnReplay = Callable[[Replay], int | None]
"""Told of replays on the route's thread; until when others of this kind and size say nothing new, on the clock of the
route, or nothing."""


class Clocks(NamedTuple):
    """Wall time, and the CPU time of the calling thread, in nanoseconds."""

    wall: Callable[[], int]
    cpu: Callable[[], int]


class Account:
    """Of one engine. Launches come under the route's lock, all else from the thread that takes turns."""

    __slots__ = (
        "_hand_out_ns",
        "_n_launches",
        "_on_replay",
        "_stage_ns",
        "_turn_ns",
        "clocks",
        "is_stale",
        "n_turns",
        "tally",
    )

    def __init__(self, clocks: Clocks, tally: RouteTally, on_replay: OnReplay) -> None:
        self.clocks, self.tally, self._on_replay = clocks, tally, on_replay
        self.n_turns = 0
        """Turns that handed something out."""
        self.is_stale = False
        """The thread did something else since the last turn."""
        self._n_launches = 0
        self._turn_ns = self._hand_out_ns = self._stage_ns = 0
        """CPU time at the beginning of the turn, of handing out a replay, and of launching one outside of a turn, as
        measured last."""

    def begin_turn(self, has_waited: bool) -> None:
        """A turn begins; `has_waited`: its wait was somebody else's work."""
        if not self._turn_ns or ((has_waited or self.is_stale) and not self.n_turns % MEASURED):
            self._turn_ns = self.clocks.cpu()
        self.is_stale = False

    def begin_launch(self, batch: Batch) -> int:
        """A launch outside of a turn, which counts what it launches itself; what `end_launch` wants to know, or 0."""
        self._n_launches += 1
        is_copied = batch.n_bytes > MEASURED_BYTES and batch.piece is None
        if not self._n_launches % MEASURED or is_copied or not self._stage_ns:
            return self.clocks.cpu()
        batch.stage_cpu_ns += self._stage_ns
        return 0

    def end_launch(self, batch: Batch, begin_ns: int) -> None:
        """It was launched."""
        spent_ns = self.clocks.cpu() - begin_ns
        batch.stage_cpu_ns += spent_ns
        if batch.n_bytes <= MEASURED_BYTES or batch.piece is not None:
            self._stage_ns = spent_ns

    def were_read(self, n_replays: int) -> None:
        """The results of so many replays were read: what follows is the callers' time."""
        if not self.n_turns % MEASURED:
            self._hand_out_ns = (self.clocks.cpu() - self._turn_ns) // n_replays

    def ended(self, replays: Sequence[tuple[Batch, Completion]], now_ns: int) -> None:
        """Count replays whose results were read by `now_ns`, and handed out."""
        each_ns = self._hand_out_ns
        tally = self.tally
        for batch, completion in replays:
            n_bytes, n_documents, queue = batch.n_bytes, batch.n_documents, batch.queue
            engine_ns, stage_ns, replay_ns = completion.engine_cpu_ns, batch.stage_cpu_ns, completion.replay_ns
            size = batch.slot.size.capacity
            tally.completed(queue.counted_as, size, n_bytes, n_documents, replay_ns, engine_ns, stage_ns, each_ns)
            kind = (batch.shares[0][0] if batch.piece is None else batch.piece.group).kind
            # The size classes of costs, of the replay and of its documents.
            quiet_ns, quiet = (
                queue.quiet_ns,
                (kind, n_bytes.bit_length() >> 1, (n_bytes // n_documents).bit_length() >> 1),
            )
            tally.n_second += completion.n_second
            if completion.needs_cpu:
                tally.needs_cpu.update(completion.needs_cpu.values())
            elif quiet in quiet_ns and quiet_ns[quiet] > now_ns:
                continue
            took_ns, cpu_ns = now_ns - batch.launched_ns, stage_ns + each_ns + engine_ns
            n_unanswered = len(completion.needs_cpu)
            replay = Replay(queue.key, kind, n_bytes, n_documents, took_ns, cpu_ns, n_unanswered, replay_ns)
            quiet_ns[quiet] = self._on_replay(replay) or 0

    def end_turn(self) -> None:
        """What was handed out has been taken."""
        self.n_turns += 1
        if not self.n_turns % MEASURED:
            self._turn_ns = self.clocks.cpu()
