"""The GPU through CuPy: memory, kernels, capture and replay. The only file that imports CuPy.

    capture   [fetch] ─► encode ─► [deliver]        once for each transfer that a size class uses
    replay    header into pinned memory, launch; the last node writes the epoch to a completion word in pinned memory

A context belongs to the thread that uses it; nothing here is safe for two threads at a time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.arena import HEADER_ROOM, arrange
from gpu_core.errors import DeviceFault, DeviceUnavailable
from gpu_core.execution import ExecutionContext, OutOfDeviceMemory, reasons_of
from gpu_core.ladder import SizeClass
from gpu_core.layout import BATCH, COMPLETION, EPOCH_SHIFT, HEADER, KERNELS, kernel_directory, n_tiles
from gpu_core.options import GpuOptions
from gpu_core.record import source_digest
from gpu_core.tables import Tables
from gpu_core.transfer import Transfer, choose, used_by

try:
    import cupy
    from cupy.cuda import driver, runtime
except ImportError:
    cupy = driver = runtime = None

TRANSFER_THREADS = 512
TRANSFER_BYTES_PER_BLOCK = 16 << 10
"""A class gets a block of `fetch` or `deliver` for so many bytes of text, up to `MAX_TRANSFER_BLOCKS`."""
MAX_TRANSFER_BLOCKS = 132
_TRANSFER_FIELDS = (
    ("pinned", "header"), ("device", "header"), ("pinned", "text"), ("device", "text"),
    ("pinned", "document_starts"), ("device", "document_starts"), ("device", "ids"), ("pinned", "ids"),
    ("device", "token_starts"), ("pinned", "token_starts"), ("device", "document_tokens"),
    ("pinned", "document_tokens"), ("device", "completion"), ("pinned", "completion"), ("device", "counters"),
)  # fmt: skip
"""`struct Transfer` of `kernels/transfer.cu`, all pointers."""
_INPUTS = frozenset({"header", "text", "document_starts"})
_RESULTS = frozenset({"ids", "token_starts", "document_tokens"})
_NOT_READY, _OUT_OF_MEMORY = 600, 2

Launch = tuple[int, int, int, Any, Any]
"""Kernel address, blocks, threads, array of parameter addresses, and what these point to."""


class CudaDevice:
    """One GPU with the tables and kernels of one tokenizer."""

    def __init__(self, tables: Tables, options: GpuOptions) -> None:
        """Raises `DeviceUnavailable` with the reason."""
        if cupy is None:
            raise DeviceUnavailable("CuPy is not installed: the extras cuda12 and cuda13 bring it")
        try:
            runtime.setDevice(options.device)
            properties = runtime.getDeviceProperties(options.device)
        except runtime.CUDARuntimeError as error:
            raise DeviceUnavailable(f"GPU {options.device} cannot be used: {error}") from None
        self.name: str = properties["name"].decode()
        self.options = options
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.tables = self._upload(tables)
        self.kernels, self._modules = _compile(tables.defines)

    @property
    def description(self) -> dict[str, str]:
        """Name, driver and CUDA version, for records of what was measured."""
        names = {"device": self.name, "cupy": str(cupy.__version__)}
        return names | {"driver": str(runtime.driverGetVersion()), "cuda": str(runtime.runtimeGetVersion())}

    def context(self, size: SizeClass) -> ExecutionContext:
        """See `Device.context`."""
        try:
            return CudaContext(self, size)
        except (cupy.cuda.memory.OutOfMemoryError, runtime.CUDARuntimeError) as error:
            if getattr(error, "status", _OUT_OF_MEMORY) == _OUT_OF_MEMORY:
                raise OutOfDeviceMemory from None
            raise DeviceFault(str(error)) from None

    def _upload(self, tables: Tables) -> NDArray[Any]:
        self._memory: dict[str, Any] = {}
        for name, array in tables.arrays.items():
            if array.size:
                self._memory[name] = cupy.cuda.Memory(array.nbytes)
                runtime.memcpy(
                    self._memory[name].ptr, np.ascontiguousarray(array).ctypes.data, array.nbytes,
                    runtime.memcpyHostToDevice,
                )  # fmt: skip
        return tables.struct({name: memory.ptr for name, memory in self._memory.items()})


class CudaContext:
    """See `ExecutionContext`."""

    def __init__(self, device: CudaDevice, size: SizeClass) -> None:
        self.size = size
        self._device, self._stream = device, device.stream.ptr
        options = device.options
        self._transfers = used_by(size.capacity)
        arena = arrange(size.capacity, size.max_documents, options.token_starts, self._transfers)
        self._arena = arena
        self._pinned_memory = cupy.cuda.PinnedMemory(arena.pinned.n_bytes)
        self._device_memory = cupy.cuda.Memory(arena.device.n_bytes)
        self._base = {"pinned": int(self._pinned_memory.ptr), "device": int(self._device_memory.ptr)}
        runtime.memset(self._base["device"], 0, arena.device.n_bytes)
        ctypes.memset(self._base["pinned"], 0, arena.pinned.n_bytes)
        self.text = self._pinned_bytes("text", size.capacity).data
        self.document_starts = self._pinned_words("document_starts")
        self.ids = self._pinned_words("ids")
        self.token_starts = self._pinned_words("token_starts")
        self.document_tokens = self._pinned_words("document_tokens")
        self._completion = self._pinned_bytes("completion", COMPLETION.itemsize).view(COMPLETION)
        self._word = self._pinned_bytes("completion", 8).data.cast("Q")
        self._pack_header = struct.Struct("<QIIII").pack_into
        self._header = self._pinned_bytes("header", HEADER.itemsize).data
        self._epoch = 0
        self._event = cupy.cuda.Event(block=True, disable_timing=True) if options.wait == "block" else None
        runtime.deviceSynchronize()
        self._replays: dict[Transfer, Callable[[], Any]] = {}
        self._held: list[Any] = []
        for transfer in self._transfers:
            self.capture(transfer)

    def capture(self, transfer: Transfer) -> None:
        """Make the graph of one transfer, and run it once on an empty batch so that nothing is left to load."""
        launches = self._launches(transfer)
        self._held.append(launches)
        if self._device.options.eager:
            self._replays[transfer] = lambda: self._run(launches)
        else:
            with self._device.stream:
                self._device.stream.begin_capture()
                self._run(launches)
                graph = self._device.stream.end_capture()
            self._held.append(graph)
            graph.upload(self._device.stream)
            executable, stream, launch = graph.graphExec, self._stream, runtime.graphLaunch
            self._replays[transfer] = lambda: launch(executable, stream)
        self._launch(transfer, 0, 0, 0)
        self._device.stream.synchronize()
        self.alive()

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """See `ExecutionContext.launch`."""
        self._launch(choose(n_bytes, n_documents, resident), n_bytes, n_documents, flags)

    def launch_as(self, transfer: Transfer, n_bytes: int, n_documents: int, flags: int) -> None:
        """The same with a given transfer, captured before: for measurements."""
        self._launch(transfer, n_bytes, n_documents, flags)

    def _launch(self, transfer: Transfer, n_bytes: int, n_documents: int, flags: int) -> None:
        self._epoch += 1
        self._pack_header(self._header, 0, self._epoch, n_bytes, n_documents, flags, 0)
        try:
            if transfer.text == "copied":
                self._copy_in(n_bytes, n_documents)
            self._replays[transfer]()
            if self._event is not None:
                self._event.record(self._device.stream)
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            raise DeviceFault(str(error)) from None

    def done(self) -> bool:
        """See `ExecutionContext.done`."""
        return self._word[0] == self._epoch

    def alive(self) -> None:
        """See `ExecutionContext.alive`."""
        try:
            status = runtime.streamQuery(self._stream)
        except runtime.CUDARuntimeError as error:
            raise DeviceFault(str(error)) from None
        if status not in {0, _NOT_READY}:
            raise DeviceFault(f"CUDA error {status}")
        if status == 0 and not self.done():
            raise DeviceFault("a replay ended without a result")

    def block(self) -> None:
        """See `ExecutionContext.block`."""
        try:
            if self._event is not None:
                self._event.synchronize()
            else:
                self._device.stream.synchronize()
        except runtime.CUDARuntimeError as error:
            raise DeviceFault(str(error)) from None

    def any_flagged(self) -> bool:
        """See `ExecutionContext.any_flagged`."""
        return bool(self._completion["any_flagged"][0])

    def n_tokens(self) -> int:
        """See `ExecutionContext.n_tokens`."""
        return int(self._completion["n_tokens"][0])

    def reasons(self, n_documents: int) -> NDArray[np.uint32]:
        """See `ExecutionContext.reasons`."""
        words = np.empty(n_documents, dtype=np.uint32)
        self.alive()
        runtime.memcpy(words.ctypes.data, self._address("device", "document_flags"), words.nbytes,
                       runtime.memcpyDeviceToHost)  # fmt: skip
        return reasons_of(words, self._epoch, EPOCH_SHIFT)

    def device_array(self, name: str, length: int, owner: object) -> Any:
        """See `ExecutionContext.device_array`."""
        address = self._address("device", name)
        memory = cupy.cuda.UnownedMemory(address, max(length, 1) * 4, owner)
        return cupy.ndarray((length,), dtype=np.uint32, memptr=cupy.cuda.MemoryPointer(memory, 0))

    def _copy_in(self, n_bytes: int, n_documents: int) -> None:
        """Header and text by the copy engine; one document needs no starts."""
        kind, stream = runtime.memcpyHostToDevice, self._stream
        to, source = self._address("device", "header"), self._address("pinned", "header")
        runtime.memcpyAsync(to, source, HEADER_ROOM + n_bytes, kind, stream)
        if n_documents > 1:
            to, source = self._address("device", "document_starts"), self._address("pinned", "document_starts")
            runtime.memcpyAsync(to, source, 4 * (n_documents + 1), kind, stream)

    def _launches(self, transfer: Transfer) -> list[Launch]:
        """The kernels of a replay, in order, with their parameters."""
        capacity = self.size.capacity
        blocks = max(1, min(MAX_TRANSFER_BLOCKS, capacity // TRANSFER_BYTES_PER_BLOCK))
        parameters = self._transfer_struct(transfer)
        nodes = [_launch_of(self._device.kernels["encode"], n_tiles(capacity), KERNELS[0].threads,
                            self._device.tables, self._batch_struct(transfer))]  # fmt: skip
        if transfer.text == "fetched":
            nodes.insert(0, _launch_of(self._device.kernels["fetch"], blocks, TRANSFER_THREADS, parameters))
        if transfer.results == "delivered":
            nodes.append(_launch_of(self._device.kernels["deliver"], blocks, TRANSFER_THREADS, parameters))
        return nodes

    def _run(self, launches: list[Launch]) -> None:
        for kernel, blocks, threads, parameters, _held in launches:
            driver.launchKernel(
                kernel, blocks, 1, 1, threads, 1, 1, 0, self._stream, ctypes.addressof(parameters), 0
            )  # fmt: skip

    def _batch_struct(self, transfer: Transfer) -> NDArray[Any]:
        batch = np.zeros((), dtype=BATCH)
        for name in BATCH.names or ():
            where = "device"
            if name in _INPUTS and not transfer.text_on_device:
                where = "pinned"
            if name in _RESULTS and not transfer.results_on_device:
                where = "pinned"
            if name == "completion" and transfer.results != "delivered":
                where = "pinned"
            batch[name] = self._address(where, name)
        return batch

    def _transfer_struct(self, transfer: Transfer) -> NDArray[Any]:
        addresses = [self._address(where, name) for where, name in _TRANSFER_FIELDS]
        if not transfer.text_on_device:
            addresses[1] = self._address("pinned", "header")
        return np.array(addresses, dtype=np.uint64)

    def _address(self, where: str, name: str) -> int:
        block = self._arena.pinned if where == "pinned" else self._arena.device
        return block.address(self._base[where], name)

    def _pinned_bytes(self, name: str, n_bytes: int) -> NDArray[np.uint8]:
        array_type = ctypes.c_uint8 * n_bytes
        array = array_type.from_address(self._address("pinned", name))
        array._owner = self._pinned_memory  # type: ignore[attr-defined]
        return np.frombuffer(memoryview(array), dtype=np.uint8)

    def _pinned_words(self, name: str) -> NDArray[np.uint32]:
        length = self._arena.lengths[name]
        return self._pinned_bytes(name, 4 * length).view(np.uint32) if length else np.zeros(0, np.uint32)


def _launch_of(kernel: int, blocks: int, threads: int, *structs: NDArray[Any]) -> Launch:
    addresses = (ctypes.c_void_p * len(structs))(*(value.ctypes.data for value in structs))
    return kernel, blocks, threads, addresses, structs


def _compile(defines: dict[str, int]) -> tuple[dict[str, int], list[Any]]:
    """Addresses of the kernels by name, and what keeps them loaded. Raises `DeviceUnavailable` if it cannot be."""
    # CuPy keeps compiled modules by source and options, and does not look into included files.
    digest = source_digest()[:16]
    flags = ("-std=c++17", f"-I{kernel_directory()}", f"-DSIDETOK_SOURCES=0x{digest}ull", "-lineinfo")
    options = (*flags, *(f"-D{name}={value}" for name, value in sorted(defines.items())))
    found: dict[str, int] = {}
    loaded: list[Any] = []
    for source, names in (("encode.cu", ("encode",)), ("transfer.cu", ("fetch", "deliver"))):
        module = cupy.RawModule(code=(kernel_directory() / source).read_text(), options=options)
        try:
            for name in names:
                kernel = module.get_function(name)
                found[name] = kernel.kernel.ptr
                loaded.append((module, kernel))
        except cupy.cuda.compiler.CompileException as error:
            raise DeviceUnavailable(f"the kernels do not compile on this device: {error}") from None
    return found, loaded
