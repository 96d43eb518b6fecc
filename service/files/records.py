"""The documents of one file, in order, each with its number; what cannot be read is a record with a reason."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from service.files.errors import FilesError
from service.files.options import FilesOptions
from service.files.sources import Source
from service.files.streams import STREAM_ERRORS, open_stream

BATCH_BYTES = 16 << 20
"""Text of Parquet files that is in memory at once, about."""
BATCH_ROWS = 4096


class Record(NamedTuple):
    """A document, or the reason why there is none."""

    number: int
    """Of the line or row, from 1; of a whole text file 1. A file that breaks off has the number after its last one."""
    text: str | None
    reason: str = ""


class Reader:
    """Reads one file, once."""

    def __init__(self, base: Path, source: Source, options: FilesOptions) -> None:
        self._path = base / source.path
        self._source = source
        self._field = options.field
        self._limit = options.max_document_bytes
        self._position: Callable[[], int] = lambda: 0
        read = {"jsonl": self._json_lines, "parquet": self._rows}
        by_line = self._lines if options.text_unit == "line" else self._whole
        self._read = read.get(source.format, by_line)

    def position(self) -> int:
        """Bytes of the file that were read so far."""
        return self._position()

    def records(self, n_done: int = 0) -> Iterator[Record]:
        """The records after number `n_done`. Blank lines are none. Raises `FilesError` for a missing package."""
        last = n_done
        try:
            with self._path.open("rb") as raw:
                self._position = raw.tell
                for record in self._read(raw, n_done):
                    last = record.number
                    yield record
        except STREAM_ERRORS as error:
            self._position = lambda: self._source.n_bytes
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            yield Record(last + 1, None, f"the file cannot be read on: {reason}")
        self._position = lambda: self._source.n_bytes

    def _whole(self, raw: IO[bytes], n_done: int) -> Iterator[Record]:
        if n_done:
            return
        data = open_stream(raw, self._source.compression).read(self._limit + 1)
        yield self._too_long(1) if len(data) > self._limit else _decoded(1, data)

    def _lines(self, raw: IO[bytes], n_done: int) -> Iterator[Record]:
        for number, line in self._raw_lines(raw, n_done):
            yield self._too_long(number) if line is None else _decoded(number, line)

    def _json_lines(self, raw: IO[bytes], n_done: int) -> Iterator[Record]:
        for number, line in self._raw_lines(raw, n_done):
            if line is None:
                yield self._too_long(number)
                continue
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                # The message ends with the place; it never has text of the document.
                yield Record(number, None, f"not JSON: {error}")
                continue
            yield self._from_object(number, value)

    def _from_object(self, number: int, value: Any) -> Record:
        if not isinstance(value, dict):
            return Record(number, None, "not a JSON object")
        if self._field not in value:
            return Record(number, None, f"there is no field {self._field!r}")
        text = value[self._field]
        return Record(number, text) if isinstance(text, str) else Record(number, None, f"{self._field!r} is not a text")

    def _raw_lines(self, raw: IO[bytes], n_done: int) -> Iterator[tuple[int, bytes | None]]:
        """Lines that are not blank, without their ends; None stands for one that is too long."""
        stream = open_stream(raw, self._source.compression)
        number = 0
        while line := stream.readline(self._limit + 2):
            number += 1
            is_long = len(line) > self._limit and not line.endswith(b"\n")
            if is_long:
                _skip_line(stream)
            if number <= n_done:
                continue
            content = line.removesuffix(b"\n").removesuffix(b"\r")
            if is_long or len(content) > self._limit:
                yield number, None
            elif content.strip():
                yield number, content

    def _rows(self, raw: IO[bytes], n_done: int) -> Iterator[Record]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise FilesError(
                "there are Parquet files, and the package pyarrow is missing: pip install 'sidetok[files]'"
            ) from None
        try:
            yield from self._texts(pyarrow.parquet.ParquetFile(raw), n_done)
        except pyarrow.ArrowException as error:
            raise OSError(f"not good Parquet: {str(error).splitlines()[0]}") from None

    def _texts(self, file: Any, n_done: int) -> Iterator[Record]:
        names = file.schema_arrow.names
        if self._field not in names:
            raise OSError(f"there is no column {self._field!r}")
        column, number = names.index(self._field), 0
        for group in range(file.metadata.num_row_groups):
            info = file.metadata.row_group(group)
            if number + info.num_rows <= n_done:
                number += info.num_rows
                continue
            rows = _batch_rows(info, column)
            for batch in file.iter_batches(rows, row_groups=[group], columns=[self._field]):
                for text in _values(batch.column(0)):
                    number += 1
                    if number > n_done:
                        yield self._from_value(number, text)

    def _from_value(self, number: int, value: Any) -> Record:
        if isinstance(value, UnicodeDecodeError):
            return Record(number, None, f"not UTF-8 at byte {value.start}")
        if not isinstance(value, str):
            return Record(number, None, f"{self._field!r} is not a text")
        if 4 * len(value) > self._limit and len(value.encode()) > self._limit:
            return self._too_long(number)
        return Record(number, value)

    def _too_long(self, number: int) -> Record:
        return Record(number, None, f"longer than {self._limit} bytes (--max-document-bytes)")


def _decoded(number: int, data: bytes) -> Record:
    try:
        return Record(number, data.decode())
    except UnicodeDecodeError as error:
        return Record(number, None, f"not UTF-8 at byte {error.start}")


def _skip_line(stream: io.BufferedReader) -> None:
    while (part := stream.readline(1 << 20)) and not part.endswith(b"\n"):
        pass


def _batch_rows(info: Any, column: int) -> int:
    """Rows of a row group that hold about `BATCH_BYTES`."""
    # Nested columns take several places; then the first one is only a guess, and any guess is bounded.
    size: int = info.column(min(column, info.num_columns - 1)).total_uncompressed_size
    n_rows: int = info.num_rows
    return max(1, min(BATCH_ROWS, BATCH_BYTES * max(1, n_rows) // max(1, size)))


def _values(array: Any) -> list[Any]:
    """The rows as Python values; text that is no UTF-8 is the error."""
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in array]
    return values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error
