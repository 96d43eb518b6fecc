"""CUDA through CuPy, in small pieces: memory, launches, compiled kernels. The only file that imports CuPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.errors import DeviceFault, DeviceUnavailable
from gpu_core.execution import OutOfDeviceMemory
from gpu_core.layout import kernel_directory
from gpu_core.record import source_digest

try:
    import cupy
    from cupy.cuda import driver, runtime
except ImportError:
    cupy = driver = runtime = None

__all__ = [
    "NOT_READY",
    "Launch",
    "address_of",
    "compile_ahead",
    "compile_kernels",
    "cupy",
    "device_address",
    "driver",
    "enqueue",
    "graph_launch",
    "host_bytes",
    "launch_of",
    "runtime",
    "stream_status",
    "taking_memory",
    "upload",
]

NOT_READY = 600
"""Status of a stream on which something runs."""

_OUT_OF_MEMORY = 2
"""Error of the runtime."""

Launch = tuple[int, int, int, Any, Any]
"""Kernel address, blocks, threads, array of parameter addresses, and what these point to."""


def stream_status(stream: int) -> int:
    """Of what was launched: 0 = it is over. Raises `DeviceFault` when it failed."""
    try:
        status = int(runtime.streamQuery(stream))
    except runtime.CUDARuntimeError as error:
        raise DeviceFault(str(error)) from None
    if status not in {0, NOT_READY}:
        raise DeviceFault(f"CUDA error {status}")
    return status


@contextmanager
def taking_memory() -> Iterator[None]:
    """Raise `OutOfDeviceMemory`, or `DeviceFault`, for what CuPy raises meanwhile."""
    try:
        yield
    except (cupy.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
        if getattr(error, "status", _OUT_OF_MEMORY) == _OUT_OF_MEMORY:
            raise OutOfDeviceMemory from None
        raise DeviceFault(str(error)) from None


def upload(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Device memory with the content of each array that has any."""
    uploaded: dict[str, Any] = {}
    for name, array in arrays.items():
        if array.size:
            source = np.ascontiguousarray(array)
            uploaded[name] = memory = cupy.cuda.Memory(source.nbytes)
            runtime.memcpy(memory.ptr, source.ctypes.data, source.nbytes, runtime.memcpyHostToDevice)
    return uploaded


def host_bytes(address: int, n_bytes: int, owner: object) -> NDArray[np.uint8]:
    """Memory of the host as an array that keeps its owner."""
    array = (ctypes.c_uint8 * n_bytes).from_address(address)
    array._owner = owner  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(array), dtype=np.uint8)


def address_of(memory: Any) -> int:
    """Where a writable buffer lies in this process."""
    return ctypes.addressof(ctypes.c_uint8.from_buffer(memory))


def device_address(host: int) -> int:
    """Of pinned memory: the same nearly everywhere, but that is the driver's to say."""
    return int(runtime.pointerGetAttributes(host).devicePointer)


def launch_of(kernel: int, blocks: int, threads: int, *structs: NDArray[Any]) -> Launch:
    """A launch with parameters passed by value."""
    addresses = (ctypes.c_void_p * len(structs))(*(value.ctypes.data for value in structs))
    return kernel, blocks, threads, addresses, structs


def enqueue(launch: Launch, stream: int, blocks: int = 0) -> None:
    """Put a launch on a stream, with another number of blocks if one is given."""
    kernel, own_blocks, threads, parameters, _structs = launch
    driver.launchKernel(kernel, blocks or own_blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(parameters), 0)


def graph_launch() -> int:
    """Where the driver's `cuGraphLaunch(graph, stream)` lies in this process."""
    return ctypes.cast(ctypes.CDLL("libcuda.so.1").cuGraphLaunch, ctypes.c_void_p).value or 0


def compile_kernels(defines: dict[str, int], names: tuple[str, ...]) -> tuple[dict[str, int], list[Any]]:
    """Addresses of the kernels by name, and what keeps them loaded. Raises `DeviceUnavailable` if it cannot be."""
    found: dict[str, int] = {}
    loaded: list[Any] = []
    for name in names:
        module = cupy.RawModule(code=_source_of(name), options=_options(defines))
        try:
            kernel = module.get_function(name)
            found[name] = kernel.kernel.ptr
        except cupy.cuda.compiler.CompileException as error:
            raise DeviceUnavailable(f"the kernels do not compile on this device: {error}") from None
        loaded.append((module, kernel))
    return found, loaded


def compile_ahead(defines: dict[str, int], name: str, architecture: str) -> None:
    """Put a kernel for GPUs of an architecture (`90`) where CuPy will look for it, without such a GPU.

    Raises `DeviceUnavailable` without CuPy, or if the kernel does not compile.
    """
    if cupy is None:
        raise DeviceUnavailable("CuPy is not installed: the extras cuda12 and cuda13 bring it")
    compiler = cupy.cuda.compiler
    flags_of = compiler._get_arch_for_options_for_nvrtc
    # It remembers its results by device, and there is none.
    compiler._get_arch_for_options_for_nvrtc = flags_of.__wrapped__
    try:
        cupy._core.core.compile_with_cache(
            _source_of(name), _options(defines), arch=architecture, prepend_cupy_headers=False
        )
    except compiler.CompileException as error:
        raise DeviceUnavailable(f"{name} does not compile for sm_{architecture}: {error}") from None
    except (driver.CUDADriverError, runtime.CUDARuntimeError):
        # What is compiled is kept before it is loaded, which needs the device.
        pass
    finally:
        compiler._get_arch_for_options_for_nvrtc = flags_of


def _source_of(name: str) -> str:
    return (kernel_directory() / f"{name}.cu").read_text()


def _options(defines: dict[str, int]) -> tuple[str, ...]:
    # CuPy keeps compiled modules by source and options, and does not look into included files.
    digest = source_digest()[:16]
    flags = ("-std=c++17", f"-I{kernel_directory()}", f"-DSIDETOK_SOURCES=0x{digest}ull", "-lineinfo")
    return (*flags, *(f"-D{name}={value}" for name, value in sorted(defines.items())))
