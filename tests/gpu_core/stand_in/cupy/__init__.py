"""Enough of CuPy to run `gpu_core.cuda` without a GPU: memory of the host, and kernels built by the shim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import cuda

__version__ = "0"


class RawModule:
    """One source. Its macros are those that the shim compiles the kernels with."""

    def __init__(self, code: str, options: Sequence[str]) -> None:
        macros = [option[2:].split("=") for option in options if option.startswith("-DSIDETOK_")]
        self._defines = {name: int(value) for name, value in macros if name != "SIDETOK_SOURCES"}

    def get_function(self, name: str) -> RawModule:
        """The kernel of a name."""
        self.ptr = cuda.driver.add_kernel(name, self._defines)
        return self

    @property
    def kernel(self) -> RawModule:
        """What has the kernel's address."""
        return self


class ndarray:
    """A device array: a view of memory that the host can read as well."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: cuda.MemoryPointer) -> None:
        self._memory = memptr
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "data": (memptr.address, False),
            "version": 3,
        }

    def __dlpack__(self) -> Any:
        return self.get().__dlpack__()

    def get(self) -> Any:
        """A copy on the host."""
        return np.asarray(_HostView(self.__cuda_array_interface__)).copy()


class _HostView:
    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface
