"""The kernels compile for every GPU that is served, without one: NVRTC needs no device and no driver."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gpu_core.decimal_layout import DECIMAL_KERNEL
from gpu_core.decode_layout import DECODE_KERNEL
from gpu_core.join_layout import JOIN_KERNEL
from gpu_core.layout import KERNELS, Kernel, kernel_directory
from gpu_core.normal_layout import NORMAL_KERNEL
from gpu_core.tables import BRIDGE_FAMILY, FAMILIES
from tests.data import FULL

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


@cache
def nvrtc() -> ctypes.CDLL | None:
    """The library of the package nvidia-cuda-nvrtc, if it is installed."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).glob("**/libnvrtc.so.*")):
            if "alt" not in path.name:
                return ctypes.CDLL(str(path))
    return None


def text_of(library: ctypes.CDLL, name: str, program: ctypes.c_void_p) -> str:
    """A log or a listing of a program."""
    size = ctypes.c_size_t()
    size_of: Callable[..., int] = getattr(library, f"nvrtcGet{name}Size")
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    read: Callable[..., int] = getattr(library, f"nvrtcGet{name}")
    read(program, buffer)
    return buffer.value.decode(errors="replace")


def compile_kernel(library: ctypes.CDLL, source: str, options: list[str]) -> tuple[int, str, int]:
    """Status, log, and size of the machine code."""
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"encode.cu", 0, None, None) == 0
    values = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = library.nvrtcCompileProgram(program, len(options), values)
    log, size = text_of(library, "ProgramLog", program), ctypes.c_size_t()
    if status == 0:
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return int(status), log, size.value


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_compile(kernel: Kernel, architecture: str) -> None:
    """Every family, without a warning; by default all of them for one architecture, and two for all."""
    library = nvrtc()
    if library is None:
        pytest.skip("the package nvidia-cuda-nvrtc is not installed (extra: dev)")
    source = (kernel_directory() / kernel.source).read_text()
    families = FAMILIES.values() if FULL or architecture == "sm_90" else [FAMILIES["cl100k"]]
    for family in [*families, BRIDGE_FAMILY]:
        options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-I{kernel_directory()}"]
        options += [f"-DSIDETOK_FAMILY={family}", f"-DSIDETOK_NFC={int(family == 2)}", "-Werror=all-warnings"]
        options += [f"-DSIDETOK_RANK_IDS={int(family == BRIDGE_FAMILY)}"]
        status, log, n_bytes = compile_kernel(library, source, options)
        assert status == 0, log
        assert n_bytes > 1_000


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "kernel", [DECODE_KERNEL, JOIN_KERNEL, DECIMAL_KERNEL, NORMAL_KERNEL], ids=lambda kernel: kernel.name
)
def test_kernels_of_all_tokenizers_compile(kernel: Kernel, architecture: str) -> None:
    """One kernel for all tokenizers, without a warning."""
    library = nvrtc()
    if library is None:
        pytest.skip("the package nvidia-cuda-nvrtc is not installed (extra: dev)")
    source = (kernel_directory() / kernel.source).read_text()
    options = [f"--gpu-architecture={architecture}", "--std=c++17", f"-I{kernel_directory()}", "-Werror=all-warnings"]
    status, log, n_bytes = compile_kernel(library, source, options)
    assert status == 0, log
    assert n_bytes > 1_000
