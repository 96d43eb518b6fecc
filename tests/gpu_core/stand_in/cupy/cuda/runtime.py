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


def memset(target: int, value: int, size: int) -> None:
    """Fill at once."""
    ctypes.memset(target, value, size)


def deviceSynchronize() -> None:
    """Nothing to do."""


def streamQuery(stream: int) -> int:
    """Always over."""
    return 0


def graphLaunch(graph: int, stream: int) -> None:
    """Replay at once."""
    driver.replay(graph)
