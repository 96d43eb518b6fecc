"""The files to read: which there are, what they hold, and the groups that are worked on together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.files.errors import FilesError

FORMATS = {
    ".txt": "text", ".text": "text", ".md": "text",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
COMPRESSIONS = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip"}


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read."""

    path: str
    """Below the input directory, with `/`."""
    format: str
    compression: str
    """`zstd`, `gzip` or empty."""
    n_bytes: int
    """As it lies on disk."""
    modified_ns: int


def find_sources(root: Path, input_format: str) -> tuple[list[Source], list[str]]:
    """The files below a directory, or one file, in the order of their paths; and the names that no format fits.

    Names that begin with a dot are passed over. Raises `FilesError` for a path that cannot be listed.
    """
    found = [root.name] if root.is_file() else sorted(_walk(root))
    base = base_of(root)
    sources, unknown = [], []
    for name in found:
        form, compression = _kind(name, input_format)
        if not form:
            unknown.append(name)
            continue
        try:
            status = os.stat(base / name)
        except OSError as error:
            raise FilesError(f"{base / name}: {error.strerror}") from None
        sources.append(Source(name, form, compression, status.st_size, status.st_mtime_ns))
    return sources, unknown


def base_of(root: Path) -> Path:
    """The directory that the paths of sources are below."""
    return root.parent if root.is_file() else root


def groups(sources: Sequence[Source], n_bytes: int) -> list[tuple[int, int]]:
    """Ranges of sources, first and end, that hold up to `n_bytes` together, or one larger file."""
    units: list[tuple[int, int]] = []
    first, size = 0, 0
    for i, source in enumerate(sources):
        if i > first and size + source.n_bytes > n_bytes:
            units.append((first, i))
            first, size = i, 0
        size += source.n_bytes
    return [*units, (first, len(sources))] if sources else []


def _walk(root: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise FilesError(f"{error.filename}: {error.strerror}") from None

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield Path(folder, name).relative_to(root).as_posix()


def _kind(name: str, input_format: str) -> tuple[str, str]:
    """Format and compression; an empty format is none that is known."""
    stem, end = os.path.splitext(name)
    compression = COMPRESSIONS.get(end.lower(), "")
    if input_format == "auto":
        form = FORMATS.get(os.path.splitext(stem if compression else name)[1].lower(), "")
    else:
        form = input_format
    # A Parquet file is compressed inside.
    return ("", "") if form == "parquet" and compression else (form, compression)
