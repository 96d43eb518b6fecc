"""One file with all texts, mapped by every client process; a document is a place in it, so sending one copies nothing.

Each corpus lies in the file again and again until the longest document fits wherever it starts:

    corpus    abcdefgh
    file      abcdefghabcdefghabcd     a document of 12 bytes may start at any of the 8 places
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]
TEXT_FILE = "texts.bin"
INDEX_FILE = "texts.json"


@dataclass(frozen=True, slots=True)
class Region:
    """Where one text lies; `n_bytes` is its length before it is repeated, `n_stored` after."""

    start: int
    n_bytes: int
    n_stored: int


class Pool:
    """The texts of one load test."""

    def __init__(self, data: memoryview, regions: dict[str, Region], corpora: list[str]) -> None:
        self.data = data
        self.regions = regions
        self.corpora = corpora
        """Names of the regions that documents of any length may be cut from."""
        self._bytes = np.frombuffer(data, np.uint8)
        self._characters: dict[str, Places] = {}

    def windows(self, name: str, numbers: Places, lengths: Places, seed: int) -> tuple[Places, Places]:
        """Starts and lengths of documents of about these lengths, whole characters only.

        Numbers below that of the characters of a corpus give starts that all differ, spread over all of it: no two of
        these documents are the same piece of text (they may overlap).
        """
        region = self.regions[name]
        places = self._characters_of(name)
        stride, offset = _walk(len(places), seed)
        starts = places[(offset + numbers * stride) % len(places)]
        limit = region.start + region.n_stored
        ends = self.next_character(np.minimum(starts + lengths, limit), limit)
        return starts, ends - starts

    def whole(self, name: str) -> tuple[int, int]:
        """Start and length of a text that is sent as it is."""
        region = self.regions[name]
        return region.start, region.n_bytes

    def text(self, start: int, n_bytes: int) -> memoryview:
        """The bytes of a document."""
        return self.data[start : start + n_bytes]

    def _characters_of(self, name: str) -> Places:
        """Where the characters of a corpus begin, not counting its repetitions."""
        if name not in self._characters:
            region = self.regions[name]
            text = self._bytes[region.start : region.start + region.n_bytes]
            self._characters[name] = region.start + np.flatnonzero(text & 0xC0 != 0x80)
        return self._characters[name]

    def next_character(self, places: Places, limit: int) -> Places:
        """Places moved to the start of a character, by at most 3 bytes."""
        for _ in range(3):
            inside = (places < limit) & (self._bytes[np.minimum(places, len(self._bytes) - 1)] & 0xC0 == 0x80)
            if not inside.any():
                break
            places = places + inside
        return places


def write_pool(
    folder: Path,
    corpora: dict[str, bytes],
    max_document_bytes: int,
    *,
    exact: dict[str, bytes] | None = None,
    apart: dict[str, bytes] | None = None,
) -> Pool:
    """Write the texts into a folder and map them.

    `exact` ones are stored once. Those `apart` are cut like corpora, but not dealt from in turn.
    """
    regions: dict[str, Region] = {}
    at = 0
    with (folder / TEXT_FILE).open("wb") as file:
        for name, text in {**corpora, **(apart or {})}.items():
            n_times = 1 + math.ceil(max_document_bytes / len(text))
            for _ in range(n_times):
                file.write(text)
            regions[name] = Region(at, len(text), len(text) * n_times)
            at += len(text) * n_times
        for name, text in (exact or {}).items():
            file.write(text)
            regions[name] = Region(at, len(text), len(text))
            at += len(text)
    index = {"regions": {name: asdict(region) for name, region in regions.items()}, "corpora": list(corpora)}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return open_pool(folder)


def open_pool(folder: Path) -> Pool:
    """Map what `write_pool` wrote."""
    index = json.loads((folder / INDEX_FILE).read_text())
    with (folder / TEXT_FILE).open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return Pool(data, {name: Region(**region) for name, region in index["regions"].items()}, index["corpora"])


def _walk(n: int, seed: int) -> tuple[int, int]:
    """Stride and offset of a walk that visits all of 0..n-1 before it repeats, each step far from the last."""
    stride = max(1, int(n * 0.6180339887) + seed % 97)
    while math.gcd(stride, n) != 1:
        stride += 1
    return stride, seed * 7919 % n
