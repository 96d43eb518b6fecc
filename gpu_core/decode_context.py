"""One place where ids are decoded: pinned memory that the kernel reads and writes over the bus, and launches over it.

    host     sequence starts, ids ─► launch ─► poll ─► sequence bytes, bytes        all in pinned memory
    kernel   reads each id once, writes each byte once, so that nothing needs to be copied first

Only the starts of many sequences are copied to the device: every block searches them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_core.decode_layout import (
    DECODE_BATCH,
    DECODE_COMPLETION,
    DECODE_JOB,
    DecodeArena,
)
from gpu_core.decode_tables import DecodeTables
from gpu_core.layout import n_id_tiles
from gpu_core.waiting import is_reached

SEARCHED_ON_HOST = 32
"""Up to so many sequences the blocks search the starts in pinned memory: one look of a warp."""


class DecodeMemory(Protocol):
    """Pinned and device memory of one context, and the kernel with a tokenizer's entries over it."""

    pinned: NDArray[np.uint8]
    """As the host sees it, zero at first."""
    pinned_address: int
    """As the device sees it."""
    device_address: int

    def launch(self, n_blocks: int, batch: NDArray[Any], job: NDArray[Any]) -> None:
        """Start the kernel. Raises `DeviceFault`."""

    def copy_in(self, pinned_offset: int, device_offset: int, n_bytes: int) -> None:
        """Copy to the device before the next launch."""

    def alive(self) -> None:
        """Raise `DeviceFault` when the device has failed."""

    def synchronize(self) -> None:
        """Wait in the driver for everything that was launched. Raises `DeviceFault`."""


class DecodeDevice(Protocol):
    """Where `DecodeMemory` comes from."""

    def decode_memories(self, tables: DecodeTables, arena: DecodeArena, n_contexts: int) -> list[DecodeMemory]:
        """Memory for some contexts of a tokenizer. Raises `OutOfDeviceMemory`, `DeviceUnavailable`."""


class DecodeContext:
    """Memory of one context by name. One launch at a time; results stay until the next."""

    def __init__(self, memory: DecodeMemory, arena: DecodeArena) -> None:
        self.arena = arena
        self._memory = memory
        self.sequence_starts = self._pinned("sequence_starts", 4 * (arena.n_sequences + 1)).view(np.uint32)
        """Written before a launch: number of each sequence's first id, the first one 0."""
        self.ids = self._pinned("ids", 4 * arena.n_ids).view(np.uint32)
        """Written before a launch."""
        self.sequence_bytes = self._pinned("sequence_bytes", 4 * (arena.n_sequences + 1)).view(np.uint32)
        """Where the bytes of each sequence begin, and the end of the last."""
        self.bytes = self._pinned("bytes", arena.n_bytes)
        completion = self._pinned("completion", DECODE_COMPLETION.itemsize)
        self._word, self._total = completion[:8].data.cast("Q"), completion[8:12].data.cast("I")
        self._near, self._far = self._batch("pinned"), self._batch("device")
        self._job = np.zeros((), dtype=DECODE_JOB)
        self._job["capacity"] = arena.n_bytes
        self._epoch = 0

    def launch(self, n_ids: int, n_sequences: int, flags: int) -> None:
        """Decode what was written. What does not fit is counted and not written."""
        self._epoch += 1
        for name, value in (("epoch", self._epoch), ("n_ids", n_ids), ("n_sequences", n_sequences), ("flags", flags)):
            self._job[name] = value
        is_near = n_sequences <= SEARCHED_ON_HOST
        if not is_near:
            offsets = self.arena.pinned.offsets["sequence_starts"], self.arena.device.offsets["sequence_starts"]
            self._memory.copy_in(*offsets, 4 * (n_sequences + 1))
        self._memory.launch(n_id_tiles(n_ids), self._near if is_near else self._far, self._job)

    def poll(self, n_times: int) -> bool:
        """Look up to `n_times`; whether the launch is complete."""
        return is_reached(self._word, self._epoch, n_times)

    def alive(self) -> None:
        """Raise `DeviceFault` when the device has failed."""
        self._memory.alive()

    def block(self) -> None:
        """Wait in the driver."""
        self._memory.synchronize()

    def n_bytes(self) -> int:
        """Bytes of the last launch, with those that did not fit."""
        return self._total[0]

    def _pinned(self, name: str, n_bytes: int) -> NDArray[np.uint8]:
        first = self.arena.pinned.offsets[name]
        return self._memory.pinned[first : first + n_bytes]

    def _batch(self, starts: str) -> NDArray[Any]:
        """The struct `Batch`, with the sequence starts on one side or the other."""
        blocks = {
            "pinned": (self.arena.pinned, self._memory.pinned_address),
            "device": (self.arena.device, self._memory.device_address),
        }
        batch = np.zeros((), dtype=DECODE_BATCH)
        for name in DECODE_BATCH.names or ():
            on_device = name in {"control", "tile_states"} or (name == "sequence_starts" and starts == "device")
            block, base = blocks["device" if on_device else "pinned"]
            batch[name] = block.address(base, name)
        return batch
