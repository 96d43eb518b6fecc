"""Compiles all kernels for common GPUs into CuPy's cache: CUPY_CACHE_DIR=... python -m deploy.docker.kernels.

A GPU whose kernels are there is ready 2 s earlier for each kind of tokenizer; for others they are compiled at start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpu_core.cuda import compile_ahead
from gpu_core.tables import BRIDGE_FAMILY, FAMILIES

ARCHITECTURES = ("80", "86", "89", "90", "100", "120")
"""A100, A10 and A40, L4 and L40, H100 and H200, B200, RTX PRO 6000."""


def variants() -> list[tuple[str, dict[str, int]]]:
    """Every kernel by its name and the macros that real tokenizers lead to."""
    pairs = [(family, int(name == "qwen2"), 0) for name, family in FAMILIES.items()] + [(BRIDGE_FAMILY, 0, 1)]
    names = ("SIDETOK_FAMILY", "SIDETOK_NFC", "SIDETOK_RANK_IDS")
    of_all: list[tuple[str, dict[str, int]]] = [(name, {}) for name in ("decode", "join", "decimal", "normalize")]
    return [*of_all, *(("encode", dict(zip(names, values, strict=True))) for values in pairs)]


def main(architectures: Sequence[str]) -> None:
    """Compile for the architectures that are given, else for all."""
    for architecture in architectures or ARCHITECTURES:
        for name, defines in variants():
            compile_ahead(defines, name, architecture)


if __name__ == "__main__":
    main(sys.argv[1:])
