"""The record of the last verification on a device: which sources it was, on what, what was checked, how fast it was.

CI has no GPU, so it cannot run the kernels as a device does. It can tell that the sources are still those that passed:
`scripts/verify-gpu` writes the record, and a test compares digests. Comments and layout of the sources do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_core.layout import kernel_directory

RECORD = Path(__file__).parent / "data" / "device_record.json"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Record:
    """What one verification found."""

    source_digest: str
    """`source_digest()` of the kernels that were verified."""
    date: str
    device: dict[str, str]
    """Name of the device, driver, CUDA and library versions."""
    checks: dict[str, int]
    """Documents compared with the reference, by check and family; all were equal."""
    sanitizer: dict[str, str] = field(default_factory=dict)
    """Tool -> its summary."""
    timings: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the benchmark."""


def source_digest(folder: Path | None = None) -> str:
    """SHA-256 over all kernel sources by name, without comments and with white space evened out."""
    total = hashlib.sha256()
    folder = folder or kernel_directory()
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        # Directives end with their line, so line ends count; a line of comments only does not.
        lines = (_SPACE.sub(" ", line).strip() for line in _COMMENT.sub(" ", path.read_text()).splitlines())
        code = "\n".join(line for line in lines if line)
        total.update(f"{path.name}\0{len(code)}\0{code}".encode())
    return total.hexdigest()


def read_record(path: Path = RECORD) -> Record | None:
    """The record, or None when the kernels have not been verified on a device yet."""
    if not path.is_file():
        return None
    return Record(**json.loads(path.read_text()))


def write_record(record: Record, path: Path = RECORD) -> None:
    """Atomically."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(asdict(record), file, indent=2, sort_keys=True)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def is_current(record: Record, folder: Path | None = None) -> bool:
    """Whether the kernel sources are still those that the record is about."""
    return record.source_digest == source_digest(folder)
