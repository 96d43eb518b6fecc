"""Stand-ins that are scripted by a test: a tokenizer, an event loop, jobs, and a dispatcher between them."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.admission import Slot
from dispatcher.dispatcher import Dispatcher
from dispatcher.job import Job
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result, Route
from dispatcher.special_tokens import SpecialTokens
from dispatcher.tokenizer import Tokenizer, TokenizerCounts
from gpu_core.errors import SidetokError
from gpu_core.spec import read_spec

LIMIT_S = 60.0
"""How long a test waits for what must happen; reaching it fails the test, so nothing depends on its value."""


class Panic(BaseException):
    """What a native library raises when it breaks: no `Exception`."""


class PanicException(BaseException):
    """The same, under the name that such panics have."""


@dataclass
class Gate:
    """Holds up whoever passes it until the test opens it."""

    entered: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def go_through(self) -> None:
        """Say that somebody is here, and wait."""
        self.entered.set()
        if not self.opened.wait(LIMIT_S):
            raise TimeoutError("nobody opened the gate")

    def wait_entered(self) -> None:
        """Wait until somebody is at the gate."""
        assert self.entered.wait(LIMIT_S), "nobody came to the gate"

    def open(self) -> None:
        """Let everybody through from now on."""
        self.opened.set()


TINY_TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "b": 2}, "unk_token": "<unk>"},
    }
).encode()
"""A tokenizer.json that every reader accepts: three words."""


class FakeTokenizer(Tokenizer):
    """One id per character, its code point. Documents are held up or fail as scripted, by their text."""

    def __init__(self) -> None:
        self.spec = read_spec(TINY_TOKENIZER)
        self.engine = "fake"
        self.engine_reason = "scripted"
        self.vocab_size = 0x110000
        self.max_id = 0x10FFFF
        self.special_tokens = SpecialTokens()
        self._last_finisher = None, None
        self.gates: dict[str, Gate] = {}
        """Documents that wait at a gate before they are encoded."""
        self.errors: dict[str, BaseException] = {}
        """Documents that raise instead of being encoded."""
        self.wrong: set[str] = set()
        """Documents whose ids are not those of the reference."""
        self.seen: list[str] = []
        """Every document that was encoded, in the order in which threads came to it."""
        self.threads: set[int] = set()
        """The threads that encoded."""

    def gate(self, document: str) -> Gate:
        """Hold up this document from now on."""
        return self.gates.setdefault(document, Gate())

    def encode(self, documents: Sequence[str], options: EncodeOptions) -> list[EncodedDocument]:
        """See `Tokenizer`."""
        result = []
        for document in documents:
            self.seen.append(document)
            self.threads.add(threading.get_ident())
            if (gate := self.gates.get(document)) is not None:
                gate.go_through()
            if (error := self.errors.get(document)) is not None:
                raise error
            encoded = self.reference_encode(document, options)
            if document in self.wrong:
                encoded.ids = encoded.ids[:-4]
            result.append(encoded)
        return result

    def reference_encode(self, document: str, options: EncodeOptions) -> EncodedDocument:
        """See `Tokenizer`."""
        ids = np.array([ord(c) for c in document], "<u4")
        n, limit = len(ids), options.max_tokens
        if truncated := limit is not None and n > limit:
            ids = ids[:limit] if options.truncation_side == "right" else ids[n - (limit or 0) :]
        encoded = EncodedDocument(b"" if options.count_only else ids.tobytes(), len(ids), truncated)
        pairs = np.arange(len(ids), dtype=np.uint32)[:, None] + np.array([0, 1], np.uint32)
        if options.char_offsets:
            encoded.char_offsets = pairs.astype(np.uint32)
        if options.byte_offsets:
            encoded.byte_offsets = pairs.astype(np.uint32)
        if options.token_strings:
            encoded.token_strings = [chr(i) for i in ids.tolist()]
        if options.special_tokens_mask:
            encoded.special_tokens_mask = np.zeros(len(ids), np.uint8)
        return encoded

    def decode(self, sequences: list[NDArray[np.uint32]], skip_special_tokens: bool) -> list[str]:
        """See `Tokenizer`; ids that are no code points are left out."""
        return ["".join(chr(i) for i in sequence.tolist() if i <= self.max_id) for sequence in sequences]

    def tokens_of(self, ids: NDArray[np.uint32]) -> list[str | None]:
        """See `Tokenizer`."""
        return [chr(i) for i in ids.tolist()]

    def token_to_id(self, token: str) -> int | None:
        """See `Tokenizer`."""
        return ord(token) if len(token) == 1 else None

    def counters(self) -> TokenizerCounts:
        """See `Tokenizer`."""
        return TokenizerCounts({"fake": len(self.seen)}, {}, 0)


class FakeLoop:
    """Stands where the event loop does: callbacks wait until the test runs them."""

    def __init__(self) -> None:
        self._callbacks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_wakes = 0

    @property
    def n_wakes(self) -> int:
        """How often it was woken; the callback of each wake-up that counts is scheduled."""
        with self._lock:
            return self._n_wakes

    def wake(self, callback: Callable[[], None]) -> None:
        """Schedule a callback, from any thread."""
        with self._lock:
            self._n_wakes += 1
            self._callbacks.put(callback)

    def run_ready(self) -> None:
        """Run what is scheduled by now."""
        while True:
            try:
                callback = self._callbacks.get_nowait()
            except queue.Empty:
                return
            callback()

    def run_until(self, happened: Callable[[], bool]) -> None:
        """Run callbacks as they come until something happened."""
        limit_s = time.monotonic() + LIMIT_S
        while not happened():
            try:
                self._callbacks.get(timeout=max(0.001, limit_s - time.monotonic()))()
            except queue.Empty:
                raise AssertionError("what the test waits for did not happen") from None


@dataclass
class Ending:
    """What a job's `on_done` was told."""

    answer: Any
    error: SidetokError | None


class FakeJob(Job[Any]):
    """A job whose answer is its ids, or the name of its error; every call of its `on_done` is kept."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *documents: str,
        slot: Slot,
        options: EncodeOptions | None = None,
        deadline_ns: int = 0,
        model: str = "fake",
        n_bytes: int | None = None,
        route: Route = "auto",
        send: Callable[[Job[Any]], None] | None = None,
    ) -> None:
        self.endings: list[Ending] = []
        self.read_threads: list[int] = []
        self._options = options or EncodeOptions()
        self._documents = list(documents)
        self._tokenizer = tokenizer
        self._label = model
        self._route = route
        self._n_bytes = sum(map(len, documents)) if n_bytes is None else n_bytes
        super().__init__(
            self._read_request,
            self._write_answer,
            self._fail_answer,
            lambda answer, error: self.endings.append(Ending(answer, error)),
            slot,
            deadline_ns,
            send=send,
        )

    @property
    def ended(self) -> bool:
        """Whether `on_done` was called."""
        return bool(self.endings)

    @property
    def ending(self) -> Ending:
        """The one ending."""
        (ending,) = self.endings
        return ending

    def _read_request(self) -> EncodeRequest:
        self.read_threads.append(threading.get_ident())
        request = EncodeRequest(self._label, self._tokenizer, self._documents, self._options, self._n_bytes)
        request.route = self._route
        return request

    @staticmethod
    def _write_answer(request: Request, result: Result) -> list[list[int]]:
        return [np.frombuffer(document.ids, "<u4").tolist() for document in result if not isinstance(document, str)]

    @staticmethod
    def _fail_answer(error: SidetokError) -> str:
        return type(error).__name__


class DecodeJob(FakeJob):
    """A job that decodes the code points of its documents."""

    def _read_request(self) -> Any:
        sequences = [np.array([ord(c) for c in document], np.uint32) for document in self._documents]
        return DecodeRequest(self._label, self._tokenizer, sequences)

    @staticmethod
    def _write_answer(request: Request, result: Result) -> Any:
        return result


def submit(dispatcher: Dispatcher, tokenizer: Tokenizer, *documents: str, **more: Any) -> FakeJob:
    """Admit and submit an encode job of these documents."""
    n_bytes = more.pop("body_bytes", sum(map(len, documents)))
    job = FakeJob(tokenizer, *documents, slot=dispatcher.admission.admit(n_bytes), **more)
    dispatcher.submit(job)
    return job
