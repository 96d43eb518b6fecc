"""What the GPU route needs of an engine: slots of shared memory, launches, completions.

    forming batch ─► fill a free slot ─► launch(slot) ─► engine replays ─► wait() returns it ─► read ids ─► slot is free

A slot is one execution context of one tokenizer: its text and its results lie in memory that this process shares with
the engine and that the engine has registered as pinned. Nothing but a small message travels. Implemented by
`process_link` (a real engine process) and `fake_link` (scripted costs and faults, simulated time).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_core.errors import SidetokError
from gpu_core.ladder import SizeClass


class EngineLost(SidetokError):
    """The engine process ended, stopped answering, or its device failed: what was in flight must run elsewhere."""


class SlotBytes(np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]):
    """Memory of a slot. A view of a view refers to the lowest array of its own type, and past the one that keeps the
    slot, if that is a plain one: so it is none."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Slot:
    """The shared memory of one execution context. Owned by the route while free or read, by the engine in between."""

    number: int
    model_key: str
    """Digest of the tokenizer that the context belongs to."""
    size: SizeClass
    text: memoryview
    """Writable, `size.capacity` bytes: UTF-8 of the batch's documents, one after the other."""
    document_starts: NDArray[np.uint32]
    """Writable, (max_documents + 1,): where each begins, and behind the last one the length of the text."""
    ids: NDArray[np.uint32]
    """The ids of all documents, once completed."""
    document_tokens: NDArray[np.uint32]
    """(max_documents + 1,): where the ids of each document begin, and the end of the last, once completed."""
    decimals: memoryview
    """The ids of all documents as decimal numbers, a comma behind each, as far as there is room; if asked for."""
    document_decimals: NDArray[np.uint32]
    """(max_documents + 1,): where the decimals of each document begin, and the end of the last, room or not."""
    starts: memoryview = field(init=False)
    """`document_starts`, for one number or two: that takes NumPy five times as long."""
    id_bytes: NDArray[np.uint8] = field(init=False)
    """`ids` as bytes, read-only."""

    def __post_init__(self) -> None:
        """See the fields."""
        self.starts, self.id_bytes = self.document_starts.data, self.ids.view(np.uint8).view(SlotBytes)
        self.id_bytes.flags.writeable = False
        self.text = np.frombuffer(self.text, np.uint8).view(SlotBytes).data


ALL_ANSWERED: Mapping[int, str] = MappingProxyType({})


@dataclass(slots=True)
class Completion:
    """One launch that ended well."""

    slot: Slot
    n_tokens: int
    replay_ns: int
    """From launch to completion, as the engine saw it."""
    engine_cpu_ns: int
    """CPU time that the engine process spent on it."""
    needs_cpu: Mapping[int, str] = field(default_factory=lambda: ALL_ANSWERED)
    """Documents that the device does not answer, with the reason."""
    n_second: int = 0
    """Replays that followed on the same slot, over text in normal form; it tells of all of them."""


class EngineLink(Protocol):
    """One engine. `launch` under the route's lock; `wait` by one thread; `interrupt` and `n_slots` from any thread."""

    @property
    def ready(self) -> bool:
        """Whether launches are accepted."""

    def slots(self, model_key: str) -> Sequence[Slot]:
        """All slots of a tokenizer, smallest class first; empty when this engine does not serve it."""

    def launch(self, slot: Slot, n_bytes: int, n_documents: int, flags: int) -> None:
        """Start a replay over what was written to the slot. Does not block. Raises `EngineLost`.

        `flags`: those of an execution context, see `gpu_core.layout`: with ids or counts only, decimal numbers, for
        texts that certainly are in normal form.
        """

    def wait(self, timeout_s: float | None) -> list[Completion]:
        """Completed replays, once there are any; empty after `interrupt` or the timeout. Raises `EngineLost`."""

    def interrupt(self) -> None:
        """Let a `wait` that is under way, or the next one, return."""
