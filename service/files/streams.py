"""Bytes of a file that may be compressed. A compressed file that ends early is an error, never a shorter file."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any, cast

from service.files.errors import FilesError

CHUNK_BYTES = 4 << 10
"""Compressed bytes that are taken at once: blocks of 128 KiB may come from 4 of them, and the memory is bounded."""
STREAM_ERRORS = (OSError, EOFError, zlib.error)


def open_stream(raw: IO[bytes], compression: str) -> io.BufferedReader:
    """The decompressed bytes of an open file. Reading raises one of `STREAM_ERRORS` where the file is damaged."""
    if compression == "zstd":
        return io.BufferedReader(ZstdStream(raw), 1 << 20)
    if compression == "gzip":
        return io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=raw)), 1 << 20)
    return cast(io.BufferedReader, raw)


class ZstdStream(io.RawIOBase):
    """Frames of Zstandard, one after the other."""

    def __init__(self, raw: IO[bytes]) -> None:
        """Raises `FilesError` when the package that reads them is missing."""
        try:
            import zstandard
        except ImportError:
            raise FilesError(
                "files end in .zst, and the package zstandard is missing: pip install 'sidetok[files]'"
            ) from None
        self._raw = raw
        self._error: type[Exception] = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._waiting = b""
        self._ready = memoryview(b"")
        self._is_inside = False

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See `io.RawIOBase`. Raises `EOFError` for a file that ends inside a frame, `OSError` for a damaged one."""
        while not self._ready:
            chunk = self._waiting or self._raw.read(CHUNK_BYTES)
            if not chunk:
                if self._is_inside:
                    raise EOFError("the file ends inside a Zstandard frame")
                return 0
            self._ready = memoryview(self._decompress(chunk))
        n = min(len(buffer), len(self._ready))
        buffer[:n] = self._ready[:n]
        self._ready = self._ready[n:]
        return n

    def _decompress(self, chunk: bytes) -> bytes:
        if not self._is_inside:
            self._frame = self._decompressor.decompressobj()
            self._is_inside = True
        try:
            data: bytes = self._frame.decompress(chunk)
        except self._error as error:
            raise OSError(str(error)) from None
        self._waiting = self._frame.unused_data if self._frame.eof else b""
        self._is_inside = not self._frame.eof
        return data
