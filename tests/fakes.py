"""Stand-ins that are scripted by a test: a tokenizer, an event loop, the two ends of an ASGI request, an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.admission import Slot
from dispatcher.dispatcher import Dispatcher
from dispatcher.job import Job
from dispatcher.options import DispatcherOptions
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result
from dispatcher.tokenizer import Tokenizer, TokenizerCounts
from gpu_core.errors import SidetokError
from gpu_core.spec import read_spec
from service.app import App, make_app
from service.endpoint import Answer, Endpoint
from service.head import check_head, read_head
from service.options import ServiceOptions
from service.registry import Registry
from service.state import Service

LIMIT_S = 20.0
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

    def encode(self, documents: list[str], options: EncodeOptions) -> list[EncodedDocument]:
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


class FakeRegistry(Registry):
    """Models with the tokenizers of the test, the first one being the default. Nothing is loaded."""

    def __init__(self, aliases: tuple[str, ...] = (), **tokenizers: Tokenizer) -> None:
        names = tuple(f"{name}=no file" for name in tokenizers)
        super().__init__(ServiceOptions(model=names, alias=aliases), DispatcherOptions())
        self.loading: Gate | None = None
        """Where `load_all` waits, if anywhere."""
        for model in self.models():
            model.tokenizer = tokenizers[model.name]
            model.max_model_len = 1000
            model.state = "ready"

    def load_all(self, around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> None:
        """See `Registry`."""
        with around():
            if self.loading is not None:
                self.loading.go_through()


class FakeLoop:
    """Stands where the event loop does: callbacks wait until the test runs them."""

    def __init__(self) -> None:
        self._callbacks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.n_wakes = 0

    def wake(self, callback: Callable[[], None]) -> None:
        """Schedule a callback, from any thread."""
        self.n_wakes += 1
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
    ) -> None:
        self.endings: list[Ending] = []
        self.read_threads: list[int] = []
        self._options = options or EncodeOptions()
        self._documents = list(documents)
        self._tokenizer = tokenizer
        self._label = model
        self._n_bytes = sum(map(len, documents)) if n_bytes is None else n_bytes
        super().__init__(
            self._read_request,
            self._write_answer,
            self._fail_answer,
            lambda answer, error: self.endings.append(Ending(answer, error)),
            slot,
            deadline_ns,
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
        return EncodeRequest(self._label, self._tokenizer, self._documents, self._options, self._n_bytes)

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


class FakeReceive:
    """The client's side of a request: its messages in order, then silence until it hangs up."""

    def __init__(self, *chunks: bytes, hangs_up: bool = False) -> None:
        self._messages: deque[dict[str, Any]] = deque(
            {"type": "http.request", "body": chunk, "more_body": i + 1 < len(chunks)} for i, chunk in enumerate(chunks)
        )
        self.n_calls = 0
        self._hung_up: asyncio.Event | None = None
        self._hangs_up = hangs_up

    async def __call__(self) -> dict[str, Any]:
        """The next message."""
        self.n_calls += 1
        if self._messages:
            return self._messages.popleft()
        if not self._hangs_up:
            self._hung_up = asyncio.Event()
            await self._hung_up.wait()
        return {"type": "http.disconnect"}

    def hang_up(self) -> None:
        """The client goes away, now or when its messages are read."""
        self._hangs_up = True
        if self._hung_up is not None:
            self._hung_up.set()


class FakeSend:
    """The server's side: keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        """Take one message."""
        self.messages.append(message)

    @property
    def status(self) -> int:
        """The status of the one answer."""
        (start,) = [m for m in self.messages if m["type"] == "http.response.start"]
        return int(start["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the one answer; a name that occurs twice fails."""
        (start,) = [m for m in self.messages if m["type"] == "http.response.start"]
        headers = dict(start["headers"])
        assert len(headers) == len(start["headers"])
        return headers

    @property
    def body(self) -> bytes:
        """The body of the answer."""
        return b"".join(m.get("body", b"") for m in self.messages if m["type"] == "http.response.body")

    @property
    def complete(self) -> bool:
        """Whether the answer was sent to its end."""
        last = self.messages[-1] if self.messages else {"type": ""}
        return last["type"] == "http.response.body" and not last.get("more_body", False)


def ask(endpoint: Endpoint, body: bytes, query: bytes = b"", **headers: str) -> Answer:
    """The answer of an endpoint without a server. Underscores in header names stand for dashes."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    head = read_head("/v1/encode", query, named)
    try:
        check_head(head)
        request = endpoint.read(head, body)
        result: Result
        if isinstance(request, DecodeRequest):
            result = request.tokenizer.decode(request.sequences, request.skip_special_tokens)
        else:
            result = request.tokenizer.encode(request.documents, request.options)
        return endpoint.write(head, request, result)
    except SidetokError as error:
        return endpoint.fail(head, error)


class FakeTransport(asyncio.Transport):
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.reading = True
        self.aborted = False
        self.n_unread = 0
        """Bytes that the peer did not read yet."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep what is written, unless the connection is closed, as asyncio does."""
        if not self.closed:
            self.written += data

    def close(self) -> None:
        """Close once."""
        self.closed = True

    def abort(self) -> None:
        """Close without sending what is left."""
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self.closed

    def get_write_buffer_size(self) -> int:
        """Bytes on their way."""
        return self.n_unread

    def pause_reading(self) -> None:
        """The protocol wants no more data."""
        self.reading = False

    def resume_reading(self) -> None:
        """The protocol wants data again."""
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known about the peer."""
        return default


class Running:
    """A service with its app inside the running event loop, without sockets."""

    def __init__(self, service: Service, app: App) -> None:
        self.service = service
        self.app = app
        self.admission = service.dispatcher.admission

    async def call(
        self,
        path: str,
        *chunks: bytes,
        query: bytes = b"",
        method: str = "POST",
        receive: FakeReceive | None = None,
        **headers: str,
    ) -> FakeSend:
        """One request through ASGI. Underscores in header names stand for dashes."""
        named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query,
            "headers": named,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        send = FakeSend()
        await self.app(scope, receive or FakeReceive(*(chunks or (b"",))), send)
        return send

    def requests(self) -> dict[tuple[str, str], int]:
        """Requests counted by now, by model and outcome."""
        return {(model, outcome): h.n for (model, _, outcome), h in self.service.meter.durations.items()}


@contextlib.asynccontextmanager
async def running(
    registry: Registry, service: ServiceOptions | None = None, work: DispatcherOptions | None = None
) -> AsyncIterator[Running]:
    """A service with these models; nothing is in flight when it is left."""
    made = Service(service or ServiceOptions(), work or DispatcherOptions(cpu_workers=2), registry)
    app = make_app(made)
    loaded = made.start()
    try:
        if getattr(registry, "loading", None) is None:
            await loaded
        yield Running(made, app)
        await eventually(lambda: made.dispatcher.n_in_flight == 0)
        assert (made.dispatcher.admission.n_requests, made.dispatcher.admission.n_bytes) == (0, 0)
        assert made.gate.uploads == {}
    finally:
        made.close()


async def eventually(happened: Callable[[], bool]) -> None:
    """Let the loop turn until something happened."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s, "what the test waits for did not happen"
        await asyncio.sleep(0.001)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""

    async def limited() -> None:
        async with asyncio.timeout(2 * LIMIT_S):
            await coroutine

    asyncio.run(limited())
