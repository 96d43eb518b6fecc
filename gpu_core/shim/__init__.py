"""The kernels on a host: g++ compiles the CUDA sources against a shim, so that they run where there is no GPU.

For tests and for debugging: it is exact, deterministic, and about a thousand times slower than a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core import layout
from gpu_core.tables import Tables

PATTERN = 0xA5A5A5A5
"""Four bytes of what no kernel wrote to yet."""
PATTERN_BYTE = 0xA5
_SUFFIXES = {".cu", ".cuh", ".hpp", ".cpp"}
_SOURCES = (layout.kernel_directory(), Path(__file__).parent)
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", *_WARNINGS, "-U_FORTIFY_SOURCE")


def compiler() -> str | None:
    """The C++ compiler that the shim needs, if there is one."""
    return shutil.which("g++")


def build(defines: dict[str, int], cache_dir: Path, flags: tuple[str, ...] = (), entry: str = "host.cpp") -> Path:
    """The shared library of the kernels that `entry` takes, with these macros; compiled unless the cache holds it."""
    cxx = compiler()
    if cxx is None:
        raise FileNotFoundError("no C++ compiler: install g++")
    sources = sorted(path for directory in _SOURCES for path in directory.iterdir() if path.suffix in _SUFFIXES)
    macros = [f"-D{name}={value}" for name, value in sorted(defines.items())]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources))
    digest.update(" ".join([cxx, *_FLAGS, *flags, *macros, entry]).encode())
    target = cache_dir / f"kernels-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir) as work:
            output = Path(work) / "kernels.so"
            includes = [f"-I{directory}" for directory in _SOURCES]
            command: list[str | Path] = [cxx, *_FLAGS, *flags, "-DSIDETOK_SHIM", *macros, *includes, "-o", output]
            subprocess.run([*command, _SOURCES[1] / entry], check=True)
            output.replace(target)
    return target


def pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    """Where an array lies; the caller keeps it alive."""
    return ctypes.c_void_p(array.ctypes.data)


def aligned(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A copy of its bytes at a multiple of 16."""
    raw = np.zeros(array.nbytes + 16, dtype=np.uint8)
    first = -raw.ctypes.data % 16
    view = raw[first : first + array.nbytes]
    view[:] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    return view


def numbers_of(write: Callable[[ctypes.c_void_p], int]) -> list[int]:
    """What a library says of its source: constants, sizes and offsets."""
    output = np.zeros(256, dtype=np.uint32)
    return [int(number) for number in output[: write(pointer(output))]]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one replay leaves behind."""

    ids: NDArray[np.uint32]
    token_starts: NDArray[np.uint32]
    document_tokens: NDArray[np.uint32]
    """Number of the first token of each document, and of all tokens: shape (n_documents + 1,)."""
    reasons: list[int]
    """Key of `layout.REASONS` of each document that needs the CPU, 0 of the others."""
    completion: NDArray[Any]

    def document_ids(self, document: int) -> NDArray[np.uint32]:
        """Ids of one document; meaningless when it needs the CPU."""
        return self.ids[self.document_tokens[document] : self.document_tokens[document + 1]]


class HostPipeline:
    """One tokenizer's kernels and one execution context, all in host memory."""

    def __init__(
        self,
        tables: Tables,
        cache_dir: Path,
        capacity: int,
        max_documents: int = 64,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.library = ctypes.CDLL(str(build(tables.defines, cache_dir, flags)))
        self.tables = tables
        self.capacity, self.max_documents = capacity, max_documents
        buffers = layout.workspace(capacity, max_documents, token_starts=True)
        self.buffers = {buffer.name: _memory_of(buffer) for buffer in buffers}
        self.epoch = 0
        self._arrays = {name: aligned(array) for name, array in tables.arrays.items()}
        self._table_struct = tables.struct({name: array.ctypes.data for name, array in self._arrays.items()})
        self._batch_struct = np.zeros((), dtype=layout.BATCH)
        for name, array in self.buffers.items():
            self._batch_struct[name] = array.ctypes.data
        self._far = {
            buffer.name: _memory_of(buffer) for buffer in buffers if buffer.name in {"text", "document_starts"}
        }
        self._n_fetched_replays = 0

    def encode(
        self, documents: list[bytes], *, flags: int = 3, backwards: bool = False, n_fetchers: int = 0
    ) -> BatchResult:
        """One replay. `backwards` runs the threads of a block in the opposite order.

        With `n_fetchers` blocks that fetch, text and document starts lie in other memory at first.
        """
        starts = self.fill(documents, flags)
        if n_fetchers:
            self._send_away()
        self._batch_struct["n_fetchers"] = n_fetchers
        n_blocks = n_fetchers + layout.n_tiles(self.capacity, self.tables.tile)
        self.library.sidetok_encode(pointer(self._table_struct), pointer(self._batch_struct), n_blocks, backwards)
        tokens = self.buffers["document_tokens"].view(np.uint32)[: len(starts)].copy()
        completion = self.buffers["completion"].view(layout.COMPLETION)[0].copy()
        reasons = self.buffers["reasons"][: len(documents)].tolist()
        n = int(tokens[-1])
        return BatchResult(
            ids=self.buffers["ids"].view(np.uint32)[:n].copy(),
            token_starts=self.buffers["token_starts"].view(np.uint32)[:n].copy(),
            document_tokens=tokens,
            reasons=reasons if completion["any_flagged"] else [0] * len(documents),
            completion=completion,
        )

    def starts(self, documents: list[bytes]) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
        """The split stage by itself: first bytes of pre-tokens, and class codes, of the joined documents."""
        self.fill(documents, 0)
        n_bytes = sum(map(len, documents))
        n_tiles, n_planes = layout.n_tiles(n_bytes, self.tables.tile), self._n_code_planes()
        output = np.zeros((n_tiles, 1 + n_planes, layout.WINDOW // 32), dtype=np.uint32)
        self.library.sidetok_starts(pointer(self._table_struct), pointer(self._batch_struct), n_tiles, pointer(output))
        bits = np.unpackbits(output.view(np.uint8), axis=-1, bitorder="little")
        own = (
            bits[:, :, layout.HALO_LEFT : layout.HALO_LEFT + self.tables.tile]
            .transpose(1, 0, 2)
            .reshape(1 + n_planes, -1)
        )
        codes = sum((own[1 + plane] << plane for plane in range(n_planes)), start=np.zeros(own.shape[1], np.uint8))
        return own[0, :n_bytes].astype(bool), codes[:n_bytes]

    def layout_numbers(self) -> list[int]:
        """Constants, sizes and offsets of the compiled source."""
        return numbers_of(self.library.sidetok_layout)

    def fill(self, documents: list[bytes], flags: int) -> NDArray[np.uint32]:
        """Write the header, the text and the document starts of the next replay; behind the text lies 0xFF."""
        self.epoch += 1
        text = b"".join(documents)
        if len(text) > self.capacity or len(documents) > self.max_documents:
            raise ValueError("the batch is larger than the capacity")
        starts = np.cumsum([0, *map(len, documents)]).astype(np.uint32)
        self.buffers["text"][:] = 0xFF
        self.buffers["text"][: len(text)] = np.frombuffer(text, np.uint8)
        self.buffers["document_starts"].view(np.uint32)[: len(starts)] = starts
        header = self.buffers["header"].view(layout.HEADER)
        header[0] = (self.epoch, len(text), len(documents), flags, 0)
        return starts

    def _send_away(self) -> None:
        """Move the text and the document starts to where a replay has to fetch them from."""
        for name, far in self._far.items():
            far[:] = self.buffers[name]
            self.buffers[name][:] = PATTERN_BYTE
            self._batch_struct[f"far_{name}"] = far.ctypes.data
        half = layout.MAX_FETCHERS * layout.FETCHED.itemsize
        places = [self.buffers["fetched"].ctypes.data + half * k for k in (0, 1)]
        self._n_fetched_replays += 1
        self._batch_struct["fetched"] = places[self._n_fetched_replays & 1]
        self._batch_struct["next_fetched"] = places[self._n_fetched_replays + 1 & 1]

    def _n_code_planes(self) -> int:
        return self.layout_numbers()[10]


def _memory_of(buffer: layout.Buffer) -> NDArray[np.uint8]:
    """What need not be zero is filled with a pattern that no result has."""
    return aligned(np.full(buffer.n_bytes, 0 if buffer.zeroed else PATTERN_BYTE, dtype=np.uint8))
