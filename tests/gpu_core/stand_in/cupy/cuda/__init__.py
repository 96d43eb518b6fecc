"""Memory, streams that do everything at once, and graphs that remember what was launched."""

from __future__ import annotations

import ctypes
from typing import Any

from . import compiler, driver, memory, runtime

__all__ = ["compiler", "driver", "memory", "runtime"]


class Memory:
    """Memory that begins at a multiple of 256 bytes, and holds anything at first."""

    def __init__(self, size: int) -> None:
        self._buffer = ctypes.create_string_buffer(size + 256)
        self.ptr = -(-ctypes.addressof(self._buffer) // 256) * 256
        ctypes.memset(self._buffer, 0xA5, size + 256)


PinnedMemory = Memory


class UnownedMemory:
    """Memory of somebody else, who is kept alive."""

    def __init__(self, ptr: int, size: int, owner: object) -> None:
        self.ptr, self.size, self.owner = ptr, size, owner


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.address = mem, mem.ptr + offset


class Graph:
    """Launches in order."""

    def __init__(self, launches: list[driver.Launch]) -> None:
        self.graphExec = driver.add_graph(launches)

    def upload(self, stream: Stream) -> None:
        """Nothing to do."""


class Stream:
    """A stream on which every launch is over when it returns."""

    _n_made = 0

    def __init__(self, non_blocking: bool = False, priority: int = 0) -> None:
        self.non_blocking, self.priority = non_blocking, priority
        Stream._n_made += 1
        self.ptr = Stream._n_made

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    def begin_capture(self) -> None:
        """From now on launches are remembered."""
        driver.begin_capture()

    def end_capture(self) -> Graph:
        """A graph of what was remembered."""
        return Graph(driver.end_capture())

    def synchronize(self) -> None:
        """Nothing to do."""


class Event:
    """An event, which is over at once."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.block, self.disable_timing = block, disable_timing
        self._behind = 0, 0

    def record(self, stream: Stream) -> None:
        """Behind all that was launched so far."""
        self._behind = stream.ptr, driver.n_launches[stream.ptr]

    def synchronize(self) -> None:
        """Whoever waits for it waits for all launches of the stream."""
        stream, n_launches = self._behind
        assert driver.n_launches[stream] == n_launches
