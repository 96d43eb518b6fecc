"""One way to turn a batch of texts into ids, and the batches it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

Ids = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents as text and as UTF-8, so that nobody is timed for making one from the other."""

    texts: list[str]
    documents: list[bytes]

    @property
    def n_bytes(self) -> int:
        """Of UTF-8, all documents together."""
        return sum(map(len, self.documents))


@dataclass(frozen=True, slots=True)
class Contender:
    """A loaded tokenizer. `encode` is what is timed; `ids` reads its answer afterwards."""

    encode: Callable[[Batch], Any]
    ids: Callable[[Any], list[Ids]]
    threads: str
    """`1` or `all`: what one call may use."""
    remembers: bool
    """Whether it keeps what it has seen, so that new text needs a fresh instance."""
    detail: str = ""
    """Version, engine or device."""
    is_judge: bool = False
    """Whether it is the reference, whose ids are right by definition."""


class Unavailable(Exception):
    """This contender cannot run here, or not with this file; the message says why."""


Maker = Callable[[bytes, Tokenizer, Path], Contender]
"""Loads a contender from the bytes of a tokenizer.json. Raises `Unavailable`.

Also gets the reference, and a folder for what it keeps in files, which all contenders share and the caller removes.
"""


def listed(answer: Any) -> list[Ids]:
    """Ids that come as one sequence of numbers for each document."""
    return [np.asarray(ids, np.uint32) for ids in answer]
