"""The GPU through CuPy: what is there once for all tokenizers, and the tables and kernels of one of them.

Its execution contexts are those of `gpu_core.context_device`.
"""

from __future__ import annotations

from typing import Any

from gpu_core.context_device import CudaContext
from gpu_core.cuda import address_of, compile_kernels, cupy, runtime, taking_memory, upload
from gpu_core.decimal_layout import DECIMAL_KERNEL
from gpu_core.decode_context import DecodeMemory
from gpu_core.decode_device import CudaDecodeMemory
from gpu_core.decode_layout import DECODE_KERNEL, DecodeArena
from gpu_core.decode_tables import DecodeTables
from gpu_core.errors import DeviceUnavailable
from gpu_core.execution import ExecutionContext, OutOfDeviceMemory
from gpu_core.join_layout import JOIN_KERNEL
from gpu_core.ladder import SizeClass
from gpu_core.normal_device import normal_forms_of
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables

_REGISTER_MAPPED = 2


class CudaGpu:
    """One GPU of this process, whatever the tokenizers: see `Gpu`."""

    def __init__(self, number: int) -> None:
        """Raises `DeviceUnavailable` with the reason."""
        if cupy is None:
            raise DeviceUnavailable("CuPy is not installed: the extras cuda12 and cuda13 bring it")
        self._number = number
        try:
            self.attach()
            properties = runtime.getDeviceProperties(number)
            self.n_gpus: int = runtime.getDeviceCount()
        except runtime.CUDARuntimeError as error:
            raise DeviceUnavailable(f"GPU {number} cannot be used: {error}") from None
        self.name: str = properties["name"].decode()

    def attach(self) -> None:
        """See `Gpu.attach`."""
        runtime.setDevice(self._number)

    def memory_bytes(self) -> tuple[int, int]:
        """See `Gpu.memory_bytes`."""
        free, total = runtime.memGetInfo()
        return int(free), int(total)

    def register(self, memory: memoryview) -> None:
        """See `Gpu.register`."""
        try:
            runtime.hostRegister(address_of(memory), len(memory), _REGISTER_MAPPED)
        except runtime.CUDARuntimeError as error:
            raise OutOfDeviceMemory(f"memory cannot be pinned: {error}") from None

    def unregister(self, memory: memoryview) -> None:
        """See `Gpu.unregister`."""
        runtime.hostUnregister(address_of(memory))

    def device(self, key: str, tables: Tables, options: GpuOptions) -> CudaDevice:
        """See `Gpu.device`."""
        try:
            return CudaDevice(tables, options)
        except cupy.cuda.memory.OutOfMemoryError:
            raise DeviceUnavailable("no memory on the device for the tables of a tokenizer") from None


class CudaDevice:
    """One GPU with the tables and kernels of one tokenizer."""

    def __init__(self, tables: Tables, options: GpuOptions) -> None:
        """Raises `DeviceUnavailable` with the reason."""
        self.name = CudaGpu(options.device).name
        self.options = options
        self._memory = upload(tables.arrays)
        self.tables = tables.struct({name: memory.ptr for name, memory in self._memory.items()})
        self.tile = tables.tile
        self.kernels, self._modules = compile_kernels(tables.defines, ("encode",))
        of_all, modules = compile_kernels({}, (DECIMAL_KERNEL.name,))
        self.kernels |= of_all
        self._modules += modules
        self._joining: tuple[int, Any] | None = None
        self.normal_forms = normal_forms_of(tables)
        """What brings text into normal form, if the device does."""

    @property
    def description(self) -> dict[str, str]:
        """Name, driver and CUDA version, for records of what was measured."""
        names = {"device": self.name, "cupy": str(cupy.__version__)}
        return names | {"driver": str(runtime.driverGetVersion()), "cuda": str(runtime.runtimeGetVersion())}

    def context(self, size: SizeClass, pinned: memoryview | None = None) -> ExecutionContext:
        """See `Device.context`."""
        with taking_memory():
            return CudaContext(self, size, pinned)

    def joining(self) -> int:
        """The kernel that joins pieces, compiled when it is first asked for."""
        if self._joining is None:
            kernels, modules = compile_kernels({}, (JOIN_KERNEL.name,))
            self._joining = kernels[JOIN_KERNEL.name], modules
        return self._joining[0]

    def decode_memories(self, tables: DecodeTables, arena: DecodeArena, n_contexts: int) -> list[DecodeMemory]:
        """See `DecodeDevice.decode_memories`."""
        kernels, modules = compile_kernels({}, (DECODE_KERNEL.name,))
        with taking_memory():
            entries = upload({"pieces": tables.pieces, "pool": tables.pool})
            struct = tables.struct({name: memory.ptr for name, memory in entries.items()})
            kernel = kernels[DECODE_KERNEL.name]
            return [CudaDecodeMemory(kernel, struct, arena, (entries, modules)) for _ in range(n_contexts)]
