"""The decimal kernel on a host."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.decimal_layout import DECIMAL_BATCH, DECIMAL_JOB, decimal_memory
from gpu_core.layout import COMPLETION, n_id_tiles
from gpu_core.shim import PATTERN, PATTERN_BYTE, build, numbers_of, pointer


@dataclass(frozen=True, slots=True)
class Decimals:
    """What one launch left in its results."""

    ids: NDArray[np.uint32]
    document_tokens: NDArray[np.uint32]
    text: bytes
    """All of the room: a pattern behind the text."""
    document_decimals: NDArray[np.uint32]


class HostDecimals:
    """Memory of one context for the kernel; `backwards` runs the threads of a block in the opposite order."""

    def __init__(
        self, cache_dir: Path, capacity: int = 1 << 17, flags: tuple[str, ...] = (), *, backwards: bool = False
    ) -> None:
        self.library = ctypes.CDLL(str(build({}, cache_dir, flags, entry="decimal_host.cpp")))
        self.backwards = backwards
        self.epoch = 0
        self.completion = np.zeros((), dtype=COMPLETION)
        self._memory = {buffer.name: np.zeros(buffer.length, buffer.dtype) for buffer in decimal_memory(capacity)}

    def __call__(
        self, ids: NDArray[np.uint32], document_tokens: NDArray[np.uint32], room: int, any_flagged: int = 0
    ) -> Decimals:
        """One launch behind a replay with these results; the grid is that of a text of twice as many bytes."""
        self.epoch += 1
        n_ids, n_documents = len(ids), len(document_tokens) - 1
        results: dict[str, NDArray[Any]] = {
            "written_ids": np.full(n_ids, PATTERN, np.uint32),
            "written_tokens": np.full(n_documents + 1, PATTERN, np.uint32),
            "decimals": np.full(room, PATTERN_BYTE, np.uint8),
            "document_decimals": np.full(n_documents + 1, PATTERN, np.uint32),
        }
        encoded = np.array((self.epoch, n_ids, any_flagged), dtype=COMPLETION)
        arrays = {"ids": ids.copy(), "document_tokens": document_tokens.copy(), "encoded": encoded, **results}
        arrays |= {"states": self._memory["states"], "control": self._memory["control"], "completion": self.completion}
        batch, job = np.zeros((), dtype=DECIMAL_BATCH), np.array((self.epoch, n_documents, room), dtype=DECIMAL_JOB)
        for name in DECIMAL_BATCH.names or ():
            batch[name] = arrays[name].ctypes.data
        self.library.sidetok_decimal(pointer(batch), pointer(job), n_id_tiles(2 * n_ids), self.backwards)
        return Decimals(
            results["written_ids"],
            results["written_tokens"],
            results["decimals"].tobytes(),
            results["document_decimals"],
        )

    def layout_numbers(self) -> list[int]:
        """Constants, sizes and offsets of the compiled source."""
        return numbers_of(self.library.sidetok_decimal_layout)
