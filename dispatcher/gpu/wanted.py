"""Tokenizers that GPUs should serve: their tables are built elsewhere, and become orders to whoever loads them.

add ─► tables are built ─► order(key, descriptor)         remove ─► order(key, -1)
          ╰─► no device serves it ─► `why_not`
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dispatcher.gpu.table_builder import TableBuilders

log = logging.getLogger("sidetok.gpu")


class WantedTokenizers:
    """Keeps which ones are wanted, and why some are not served. Every method may be called from any thread."""

    def __init__(self, cache_dir: Path | None, order: Callable[[str, int], object]) -> None:
        """`order` gets a key and the descriptor of its tables, which it owns then, or -1 to serve it no more."""
        self._order = order
        self._wanted: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._builders = TableBuilders(cache_dir, self._built, self._failed)

    def __contains__(self, key: str) -> bool:
        return key in self._wanted

    def add(self, key: str, data: bytes) -> None:
        """Serve a tokenizer.json; `key` is its digest."""
        self._reasons.pop(key, None)
        if key not in self._wanted:
            self._wanted.add(key)
            self._builders.submit(key, data)

    def remove(self, key: str) -> None:
        """Serve it no more."""
        self._wanted.discard(key)
        self._reasons.pop(key, None)
        self._order(key, -1)

    def refuse(self, key: str, reason: str) -> None:
        """It cannot be served."""
        self._reasons[key] = reason
        self._wanted.discard(key)
        log.info("tokenizer %.12s is not served by GPUs: %s", key, reason)

    def why_not(self, key: str) -> str:
        """Why one that was added is not served; empty if it is or may be soon."""
        return self._reasons.get(key, "")

    def close(self) -> None:
        """Build nothing more."""
        self._builders.close()

    def _built(self, key: str, fd: int, reason: str) -> None:
        if reason:
            self.refuse(key, reason)
        else:
            self._reasons.pop(key, None)
            self._order(key, fd)

    def _failed(self, key: str, reason: str, pause_s: float) -> bool:
        """Whether it is tried again."""
        if key not in self._wanted:
            return False
        self._reasons[key] = reason
        log.warning("tables of tokenizer %.12s are built again in %.1f s: %s", key, pause_s, reason)
        return True
