"""The shadow check: a sampled fraction of answers is computed again by the reference, off the path, and compared."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from dispatcher.errors import ModelAway
from dispatcher.meter import ThreadClocks
from dispatcher.request import EncodedDocument, EncodeOptions, EncodeRequest

if TYPE_CHECKING:
    from dispatcher.tokenizer import Tokenizer

log = logging.getLogger("sidetok.shadow")

MAX_WAITING = 64
"""Documents that wait for the check; more are dropped and counted, so that the check never holds much text."""
MAX_CHARS = 1 << 20
"""Longer documents are dropped, too: the reference takes some hundred bytes of memory for each character."""
CLOSE_S = 0.25


@dataclass(slots=True)
class ShadowCounts:
    """Outcomes of the check, in documents."""

    n_equal: int = 0
    n_mismatched: int = 0
    n_dropped: int = 0
    n_failed: int = 0


class Sample(NamedTuple):
    """One document to check; the others of its request are not held."""

    model: str
    tokenizer: Tokenizer
    options: EncodeOptions
    document: str
    encoded: EncodedDocument


class ShadowCheck:
    """Compares sampled documents with the reference on one low-priority thread."""

    def __init__(self, fraction: float, clocks: ThreadClocks, seed: int | None = None) -> None:
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"--shadow-check is a fraction from 0 to 1, not {fraction}")
        self.fraction = fraction
        self.counts: dict[str, ShadowCounts] = {}
        self._random = random.Random(seed)
        self._queue: queue.Queue[Sample | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._closing = False
        if fraction:
            self._thread = threading.Thread(target=self._work, name="sidetok-shadow", daemon=True)
            self._thread.start()
            clocks.register("shadow_check", self._thread)

    def sample(self, request: EncodeRequest, result: list[EncodedDocument]) -> None:
        """Offer the documents of one request; each is taken with the probability `fraction`."""
        for number, encoded in enumerate(result):
            if self._random.random() >= self.fraction:
                continue
            document = request.documents[number]
            try:
                if len(document) > MAX_CHARS:
                    raise queue.Full
                self._queue.put_nowait(Sample(request.model, request.tokenizer, request.options, document, encoded))
            except queue.Full:
                self._counts_of(request.model).n_dropped += 1

    def close(self) -> None:
        """Stop after the document at hand; what waits is dropped."""
        if self._thread is not None:
            self._closing = True
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)
            self._thread.join(CLOSE_S)

    def _counts_of(self, model: str) -> ShadowCounts:
        return self.counts.setdefault(model, ShadowCounts())

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while (sample := self._queue.get()) is not None and not self._closing:
            counts = self._counts_of(sample.model)
            try:
                self._compare(sample, counts)
            except ModelAway:
                # A process that is started again is no fault of a check, and may be gone for thousands of them.
                counts.n_dropped += 1
            except BaseException:  # native panics are no `Exception`
                counts.n_failed += 1
                log.warning("shadow check failed", extra={"model": sample.model}, exc_info=False)
            # The last document must not stay until the next one comes.
            del sample

    @staticmethod
    def _compare(sample: Sample, counts: ShadowCounts) -> None:
        encoded = sample.encoded
        expected = sample.tokenizer.reference_encode(sample.document, sample.options)
        if (expected.ids, expected.n_tokens) == (encoded.ids, encoded.n_tokens):
            counts.n_equal += 1
            return
        counts.n_mismatched += 1
        log.error(
            "an engine disagrees with the reference; report it and serve the model with --cpu-engine reference",
            extra={"model": sample.model, "n_tokens": encoded.n_tokens, "expected_n_tokens": expected.n_tokens},
        )
