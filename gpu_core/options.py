"""Knobs of the GPU core; each once, with its default and one line of documentation in `metadata`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WAIT_MODES = ("adaptive", "spin", "block")

KIB, MIB = 1 << 10, 1 << 20
MAX_CLASSES = 8


def _knob(default: Any, doc: str, choices: tuple[str, ...] | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "at_most": None})


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What is set up on the device at start. Raises `ValueError` for values that make no sense."""

    device: int = _knob(0, "Index of the GPU among those that the process sees.")
    size_classes_bytes: tuple[int, ...] = _knob(
        (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, 1 * MIB, 4 * MIB, 16 * MIB),
        "Largest text of each size class, ascending; at most 8 classes.",
    )
    contexts_per_class: int = _knob(2, "Execution contexts of a class: results that can be held at a time.")
    max_documents: int = _knob(1 << 17, "Documents of one replay at most; a small class takes fewer.")
    memory_budget_bytes: int = _knob(0, "Device memory for all execution contexts; 0 = what they need.")
    token_starts: bool = _knob(False, "Make room for the byte position of each token.")
    wait: str = _knob("adaptive", "How to wait for the device.", WAIT_MODES)
    eager: bool = _knob(False, "Launch the kernels one by one instead of replaying a graph.")
    cache_dir: str = _knob("", "Directory of cached tables; empty = no cache.")

    def __post_init__(self) -> None:
        """Check what no type says."""
        sizes = self.size_classes_bytes
        if not 1 <= len(sizes) <= MAX_CLASSES or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"size classes must be 1 to {MAX_CLASSES} ascending numbers of bytes, not {sizes}")
        if self.contexts_per_class < 1 or self.max_documents < 1 or self.memory_budget_bytes < 0:
            raise ValueError("contexts and documents must be at least 1, the memory budget at least 0")
        if self.wait not in WAIT_MODES:
            raise ValueError(f"wait must be adaptive, spin or block, not {self.wait!r}")
