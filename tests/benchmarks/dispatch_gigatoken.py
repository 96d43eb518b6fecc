"""The competitor: gigatoken on as many threads as the service may use CPUs, fed as open-loop load demands.

A call for each document: the library's batch calls work on one thread unless they get megabytes, and either make Python
lists or take a tenth of a millisecond of Python a call. This one releases the interpreter. Each thread has a tokenizer
of its own: threads that share one wait for each other (4,200 documents/s on 8 CPUs, 1.4 of them busy). Its cache of
words has to see some megabytes before it is as fast as it gets.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from tests.benchmarks.dispatch_load import Record


class GigatokenTarget:
    """Threads that each take the document that waits longest."""

    name = "gigatoken"

    def __init__(self, tokenizer_json: bytes, n_threads: int) -> None:
        """To be made by a thread whose CPU affinity is that of the service: its threads inherit it.

        Raises `ImportError` without the library.
        """
        from gigatoken.gigatoken_rs import PadTruncate, load_hf_json

        self._load, self._options = partial(load_hf_json, tokenizer_json), PadTruncate(0)
        self._waiting: SimpleQueue[tuple[int, bytes, Record] | None] = SimpleQueue()
        self._record: Record | None = None
        self._counts = [0] * n_threads
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"gigatoken-{number}", daemon=True)
            for number in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, first: int, documents: Sequence[bytes], record: Record) -> None:
        """See `Target`."""
        self._record = record
        for number, document in enumerate(documents, first):
            self._waiting.put((number, document, record))

    def counters(self) -> dict[str, float]:
        """See `CountingTarget`."""
        return {"cpu_documents": sum(self._counts)}

    def close(self) -> None:
        """End the threads."""
        for _thread in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self, number: int) -> None:
        backend: Any = self._load()
        while (item := self._waiting.get()) is not None:
            place, document, record = item
            if record is not self._record:
                continue
            rows, _lengths = backend.encode_batch_padded([document], self._options, parallel=False)
            if record.sampled(place, 1):
                record.kept[place] = np.asarray(rows, dtype=np.uint32).tobytes()
            self._counts[number] += 1
            record.answered(place, 1)
