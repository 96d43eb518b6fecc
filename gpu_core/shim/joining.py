"""The joining kernel on a host."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.join_layout import JOIN_BATCH, JOIN_JOB, join_memory, n_blocks
from gpu_core.layout import COMPLETION, EPOCH_SHIFT, FLAG_IDS, FLAG_TOKEN_STARTS
from gpu_core.shim import PATTERN, build, numbers_of, pointer
from gpu_core.twin_join import EncodedPieces, Joined


class HostJoin:
    """Memory of one context for the kernel; `backwards` runs the threads of a block in the opposite order."""

    def __init__(
        self, cache_dir: Path, capacity: int = 1 << 20, flags: tuple[str, ...] = (), *, backwards: bool = False
    ) -> None:
        self.library = ctypes.CDLL(str(build({}, cache_dir, flags, entry="join_host.cpp")))
        self.backwards = backwards
        self.epoch = 0
        self.completion = np.zeros((), dtype=COMPLETION)
        self._memory = {buffer.name: np.zeros(buffer.length, buffer.dtype) for buffer in join_memory(capacity)}

    def __call__(self, pieces: EncodedPieces, flags: int = FLAG_IDS | FLAG_TOKEN_STARTS) -> Joined:
        """One launch; what it does not write holds a pattern."""
        self.epoch += 1
        n_pieces, n_tokens = len(pieces.places), int(pieces.tokens[-1])
        words = (self.epoch << EPOCH_SHIFT) & 0xFFFFFFFF | pieces.reasons
        arrays: dict[str, NDArray[Any]] = {
            "ids": pieces.ids[:n_tokens].copy(),
            "token_starts": pieces.token_starts[:n_tokens].copy(),
            "document_tokens": pieces.tokens,
            "document_starts": pieces.starts,
            "document_flags": np.where(pieces.reasons > 0, words, (words | 1) - (1 << EPOCH_SHIFT)).astype(np.uint32),
            "places": pieces.places,
            "joined_ids": np.full(n_tokens, PATTERN, np.uint32),
            "joined_starts": np.full(n_tokens, PATTERN, np.uint32),
            "piece_tokens": np.full(n_pieces + 1, PATTERN, np.uint32),
            "reports": np.full(n_pieces, PATTERN, np.uint32),
            **self._memory,
            "completion": self.completion,
        }
        batch, job = np.zeros((), dtype=JOIN_BATCH), np.zeros((), dtype=JOIN_JOB)
        for name in JOIN_BATCH.names or ():
            batch[name] = arrays[name].ctypes.data
        for name, value in (("epoch", self.epoch), ("n_bytes", pieces.starts[-1]), ("n_pieces", n_pieces)):
            job[name] = value
        job["flags"] = flags
        self.library.sidetok_join(pointer(batch), pointer(job), n_blocks(n_pieces), self.backwards)
        n_kept = int(arrays["piece_tokens"][-1])
        joined = arrays["joined_ids"][:n_kept], arrays["joined_starts"][:n_kept]
        return Joined(*joined, arrays["piece_tokens"], arrays["reports"])

    def layout_numbers(self) -> list[int]:
        """Constants, sizes and offsets of the compiled source."""
        return numbers_of(self.library.sidetok_join_layout)
