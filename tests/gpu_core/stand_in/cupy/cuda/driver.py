"""Launches, at once or remembered."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from gpu_core.shim import build

Launch = tuple[int, int, Any]
"""Kernel, blocks, addresses of parameters."""

_kernels: list[tuple[str, Any]] = []
_graphs: list[list[Launch]] = []
_captured: list[list[Launch]] = []
n_launches: Counter[int] = Counter()
"""By stream."""
_running = threading.Lock()
"""The kernels of the shim share memory: one runs at a time."""


class CUDADriverError(Exception):
    """Never raised here."""


def add_kernel(name: str, defines: dict[str, int]) -> int:
    """The address of a kernel."""
    entry = {"encode": "host.cpp", "normalize": "normal_host.cpp"}.get(name, f"{name}_host.cpp")
    library = ctypes.CDLL(str(build(defines, Path(os.environ["SHIM_CACHE"]), entry=entry)))
    _kernels.append((name, library))
    return len(_kernels) - 1


def add_graph(launches: list[Launch]) -> int:
    """The address of a graph."""
    _graphs.append(launches)
    return len(_graphs) - 1


def begin_capture() -> None:
    """From now on launches are remembered."""
    _captured.append([])


def end_capture() -> list[Launch]:
    """What was remembered."""
    return _captured.pop()


def replay(graph: int, stream: int) -> None:
    """All launches of a graph."""
    n_launches[stream] += 1
    for launch in _graphs[graph]:
        _run(*launch)


def launchKernel(
    kernel: int, blocks: int, _y: int, _z: int, threads: int, *rest: int
) -> None:  # The names and the order are CuPy's.
    """Launch, or remember the launch."""
    assert (_y, _z) == (1, 1)
    assert threads == 256
    parameters = ctypes.cast(rest[4], ctypes.POINTER(ctypes.c_void_p))
    if _captured:
        _captured[-1].append((kernel, blocks, parameters))
    else:
        n_launches[rest[3]] += 1
        _run(kernel, blocks, parameters)


def _run(kernel: int, blocks: int, parameters: Any) -> None:
    name, library = _kernels[kernel]
    with _running:
        if name == "encode":
            library.sidetok_encode(ctypes.c_void_p(parameters[0]), ctypes.c_void_p(parameters[1]), blocks, 0)
        elif name in {"join", "decimal"}:
            kernel_of = library.sidetok_join if name == "join" else library.sidetok_decimal
            kernel_of(ctypes.c_void_p(parameters[0]), ctypes.c_void_p(parameters[1]), blocks, 0)
        else:
            kernel_of = library.sidetok_normalize if name == "normalize" else library.sidetok_decode
            kernel_of(*(ctypes.c_void_p(parameters[i]) for i in range(3)), blocks, 0)
