"""Shards: files that appear whole or not at all, with digests, and the record of each that makes it count.

shard-00003-00000.bin     ids, little-endian uint16 or uint32, the documents one after the other
shard-00003-00000.idx     little-endian uint64: where each document begins, in ids, and the end of the last
shard-00003-00000.json    what is in them; written last, and without it they are not there
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from service.files.errors import FilesError

PARTIAL = ".partial"


class Writer(Protocol):
    """Takes ids of documents; `finish` gives the files their names and returns name, size and digest of each."""

    def add(self, ids: NDArray[Any], lengths: NDArray[np.uint64]) -> None:
        """Append documents."""

    def finish(self) -> list[dict[str, Any]]:
        """Close the files and move them into place."""

    def discard(self) -> None:
        """Close the files and remove them."""


def writer(folder: Path, name: str, id_type: str, output_format: str) -> Writer:
    """A writer of one shard. Raises `FilesError` when a package is missing."""
    return ParquetWriter(folder, name, id_type) if output_format == "parquet" else BinWriter(folder, name)


class BinWriter:
    """Ids and an index, both to be read with `numpy.memmap`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ids, self._index = _HashedFile(folder / f"{name}.bin"), _HashedFile(folder / f"{name}.idx")
        self._n_tokens = 0
        self._index.write(np.zeros(1, "<u8"))

    def add(self, ids: NDArray[Any], lengths: NDArray[np.uint64]) -> None:
        """See `Writer`."""
        self._ids.write(ids)
        ends = np.cumsum(lengths, dtype="<u8") + np.uint64(self._n_tokens)
        self._index.write(ends.astype("<u8", copy=False))
        self._n_tokens += ids.size

    def finish(self) -> list[dict[str, Any]]:
        """See `Writer`."""
        return [self._ids.finish(), self._index.finish()]

    def discard(self) -> None:
        """See `Writer`."""
        self._ids.discard()
        self._index.discard()


class ParquetWriter:
    """One column `ids`, a list for each document."""

    def __init__(self, folder: Path, name: str, id_type: str) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise FilesError("--output-format parquet needs pyarrow: pip install 'sidetok[files]'") from None
        self._arrow: Any = pyarrow
        self._path = folder / f"{name}.parquet"
        self._partial = Path(f"{self._path}{PARTIAL}")
        self._schema = pyarrow.schema([("ids", pyarrow.large_list(getattr(pyarrow, id_type)()))])
        self._file = pyarrow.parquet.ParquetWriter(self._partial, self._schema, compression="zstd")

    def add(self, ids: NDArray[Any], lengths: NDArray[np.uint64]) -> None:
        """See `Writer`."""
        if not lengths.size:
            return
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
        rows = self._arrow.LargeListArray.from_arrays(self._arrow.array(offsets), self._arrow.array(ids))
        self._file.write_table(self._arrow.table([rows], schema=self._schema))

    def finish(self) -> list[dict[str, Any]]:
        """See `Writer`."""
        self._file.close()
        with self._partial.open("rb+") as file:
            os.fsync(file.fileno())
        facts = {"name": self._path.name, "n_bytes": self._partial.stat().st_size, "sha256": digest(self._partial)}
        self._partial.replace(self._path)
        return [facts]

    def discard(self) -> None:
        """See `Writer`."""
        self._file.close()
        self._partial.unlink(missing_ok=True)


class _HashedFile:
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = Path(f"{path}{PARTIAL}")
        self._file: IO[bytes] = self._partial.open("wb")
        self._hash = hashlib.sha256()
        self._n_bytes = 0

    def write(self, array: NDArray[Any]) -> None:
        data = memoryview(np.ascontiguousarray(array).data).cast("B") if array.size else memoryview(b"")
        self._file.write(data)
        self._hash.update(data)
        self._n_bytes += data.nbytes

    def finish(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)
        return {"name": self._path.name, "n_bytes": self._n_bytes, "sha256": self._hash.hexdigest()}

    def discard(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that appears whole or not at all."""
    partial = Path(f"{path}{PARTIAL}")
    with partial.open("wb") as file:
        file.write(orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when there is no such file or no such object in it."""
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return value if isinstance(value, dict) else None


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether a file has the size and the digest that its record says."""
    path = folder / facts["name"]
    return path.is_file() and bool(path.stat().st_size == facts["n_bytes"] and digest(path) == facts["sha256"])
