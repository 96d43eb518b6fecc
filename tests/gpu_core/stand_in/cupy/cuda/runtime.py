"""The part of the CUDA runtime that copies."""

from __future__ import annotations

import ctypes

from . import driver

memcpyHostToDevice, memcpyDeviceToHost = 1, 2


class CUDARuntimeError(Exception):
    """Never raised here."""


def setDevice(device: int) -> None:
    """There is one."""


def getDeviceProperties(device: int) -> dict[str, bytes]:
    """Its name."""
    return {"name": b"stand-in"}


def driverGetVersion() -> int:
    """None."""
    return 0


def runtimeGetVersion() -> int:
    """None."""
    return 0


def memcpy(target: int, source: int, size: int, kind: int) -> None:
    """Copy at once."""
    ctypes.memmove(target, source, size)


def memcpyAsync(target: int, source: int, size: int, kind: int, stream: int) -> None:
    """Copy at once."""
    ctypes.memmove(target, source, size)


def memsetAsync(target: int, value: int, size: int, stream: int) -> None:
    """Fill at once."""
    ctypes.memset(target, value, size)


class PointerAttributes:
    """Where memory lies for the device."""

    def __init__(self, pointer: int) -> None:
        self.devicePointer = pointer


def pointerGetAttributes(pointer: int) -> PointerAttributes:
    """Where it lies for the host."""
    return PointerAttributes(pointer)


registered: dict[int, int] = {}
"""Bytes of the memory that is registered, by its address."""


def hostRegister(pointer: int, size: int, flags: int) -> None:
    """Remember it."""
    registered[pointer] = size


def hostUnregister(pointer: int) -> None:
    """Forget it."""
    del registered[pointer]


def memGetInfo() -> tuple[int, int]:
    """Free and all."""
    return 1 << 30, 1 << 30


def getDeviceCount() -> int:
    """One."""
    return 1


def streamQuery(stream: int) -> int:
    """Always over."""
    return 0


def streamSynchronize(stream: int) -> None:
    """Work is done at once, so there is nothing to wait for."""


def graphLaunch(graph: int, stream: int) -> None:
    """Replay at once."""
    driver.replay(graph, stream)
