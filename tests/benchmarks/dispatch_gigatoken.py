"""The competitor: gigatoken's batch call on all CPUs that the service may use, fed as open-loop load demands."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.benchmarks.dispatch_load import Record

ROWS_FROM = 8
"""Larger batches are answered as one array with offsets; for smaller ones lists of numbers take less time."""


class GigatokenTarget:
    """A thread that takes everything that waits and encodes it in one call of the library, on threads of its own."""

    name = "gigatoken"

    def __init__(self, tokenizer_json: bytes, n_threads: int) -> None:
        """To be made by a thread whose CPU affinity is that of the service: the library's threads inherit it.

        Raises `ImportError` without the library.
        """
        os.environ["RAYON_NUM_THREADS"] = str(n_threads)
        from gigatoken.gigatoken_rs import load_hf_json

        self._backend: Any = load_hf_json(tokenizer_json)
        self._backend.encode_batch([b"Warm up."] * (ROWS_FROM + 1), parallel=True)
        self._waiting: list[tuple[int, Sequence[bytes], Record]] = []
        self._more = threading.Condition()
        self._closed = False
        self._n_documents = self._n_batches = 0
        self._thread = threading.Thread(target=self._serve, name="gigatoken", daemon=True)
        self._thread.start()

    def submit(self, first: int, documents: Sequence[bytes], record: Record) -> None:
        """See `Target`."""
        with self._more:
            self._waiting.append((first, documents, record))
            self._more.notify()

    def counters(self) -> dict[str, float]:
        """See `CountingTarget`."""
        return {"cpu_documents": self._n_documents, "batches": self._n_batches}

    def close(self) -> None:
        """End the thread."""
        with self._more:
            self._closed = True
            self._more.notify()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._more:
                while not self._waiting and not self._closed:
                    self._more.wait()
                if self._closed:
                    return
                groups, self._waiting = self._waiting, []
            documents = [document for _, group, _ in groups for document in group]
            rows = self._encode(documents)
            self._n_batches += 1
            self._n_documents += len(documents)
            start = 0
            for first, group, record in groups:
                for sample in record.sampled(first, len(group)):
                    record.kept[sample] = np.asarray(rows[start + sample - first], dtype=np.uint32).tobytes()
                record.answered(first, len(group))
                start += len(group)

    def _encode(self, documents: list[bytes]) -> Any:
        if len(documents) == 1:
            return [self._backend.encode(documents[0])]
        if len(documents) <= ROWS_FROM:
            return self._backend.encode_batch_list(documents, parallel=True)
        return self._backend.encode_batch(documents, parallel=True)
