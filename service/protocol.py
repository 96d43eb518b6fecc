"""The HTTP/1.1 protocol of uvicorn (httptools), with a short cut for hot requests.

A hot request needs no ASGI scope, task, events or messages: its body is collected, its job goes to the dispatcher, and
the answer is written to the transport when the job is done (`service.hot_cycle`). Everything else is uvicorn's:
parsing, flow control, keep-alive, pipelining, shutdown, and all other endpoints. `HotCycle` stands where uvicorn keeps
the request being answered, and has the attributes that it reads there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dispatcher.admission import Slot
from service.endpoint import Answer
from service.gate import Gate
from service.head import read_head, request_id_of
from service.hot_cycle import HotCycle
from service.http_answer import head_of
from service.outlet import Outlet
from service.peer import peer_of

log = logging.getLogger("sidetok.protocol")

HEAD_S = 10.0
"""The least time for a first request, or for the next piece of a head, however short idle connections live."""
MAX_HEAD_BYTES = 65_536
_BODY_FIELDS = frozenset({b"content-length", b"transfer-encoding", b"expect"})
_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol; POST requests for hot endpoints take the short cut, and so do those for constant answers.

    A constant answer (`/health`) is written when its request was parsed: a task would have to wait for the interpreter
    once more, behind the workers.
    """

    gate: Gate
    outlet: Outlet
    _hot: HotCycle | None = None
    """The latest hot request; `cycle` may already be one that is pipelined behind it."""
    _constant: Answer | None = None
    """The answer to a request whose head is complete and that has no body."""
    _running: Any = None
    """The latest request that ASGI answers; `cycle` may be one that waits behind it."""
    _seen_headers: Any = None
    """The header list of the latest request whose head is complete."""
    _n_head_bytes = 0
    _peer = ""
    """Who is at the other end, for fair shares."""
    _n_unread = 0
    """Bytes of answers that the client had not read when the connection was last found idle."""
    _unread: Slot | None = None
    """What answers that the client does not read take of the admission."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected. One that sends nothing is as idle as one between requests."""
        super().connection_made(transport)
        self._peer = peer_of(transport)
        self.outlet = Outlet(transport, self.loop.call_soon_threadsafe)
        self._watch_idle(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client. A head that does not end is refused: the parser would collect it without bound."""
        self._settle_answered()
        self._unset_keepalive_if_required()
        before = self.headers
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            log.warning("invalid HTTP")
            self.send_400_response("Invalid HTTP request received.")
            return
        if self.headers is self._seen_headers:
            return
        # What stands before a head that began in this piece (bodies, whole requests) is no part of it.
        self._n_head_bytes += len(data) if self.headers is before else 0
        if self._n_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.outlet.write(_HEAD_TOO_LARGE)
            self.transport.close()
        self._watch_idle(HEAD_S)

    def on_message_begin(self) -> None:
        """A request begins. What only ASGI needs of it is made when it goes there."""
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        """Choose the path. A request that is pipelined behind another goes through ASGI, which keeps the order."""
        if self.parser.should_upgrade():
            return
        self._seen_headers = self.headers
        self._n_head_bytes = 0
        if self.transport.is_closing():
            return
        raw_path, _, query = self.url.partition(b"?")
        path, method = raw_path.decode("latin-1"), self.parser.get_method()
        endpoint = self.gate.endpoints.get(path) if method == b"POST" else None
        constant = self.gate.constants.get(path) if method in (b"GET", b"HEAD") else None
        if self._is_busy and self._hot is not None:
            # From now on no worker answers that one: the loop has to know when it is done. Or one has, just now.
            self.outlet.flush()
            self._settle_answered()
        takes_long_way = self._is_busy or self.pipeline or self.parser.get_http_version() != "1.1"
        if constant is not None and not takes_long_way and _BODY_FIELDS.isdisjoint(name for name, _ in self.headers):
            self._constant = constant
            return
        if endpoint is None or takes_long_way:
            self._begin_asgi()
            return
        head = read_head(path, query, self.headers)
        head.client = head.client or self._peer
        cycle: Any = HotCycle(self, endpoint, head, self.parser.should_keep_alive())
        self.cycle = self._hot = cycle
        cycle.begin(self.expect_100_continue)

    def _begin_asgi(self) -> None:
        self.outlet.flush()
        url, headers, expects_continue = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects_continue
        self.scope["headers"] = headers
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _settle_answered(self) -> None:
        """Requests whose answers workers sent have ended."""
        if self.gate.dispatcher.has_news:
            self.gate.dispatcher.deliver()

    def send_400_response(self, msg: str) -> None:
        """An answer to what is no request."""
        self.outlet.flush()
        super().send_400_response(msg)

    def shutdown(self) -> None:
        """The service ends."""
        self.outlet.flush()
        super().shutdown()

    def on_body(self, body: bytes) -> None:
        """A piece of the current request's body."""
        if isinstance(self.cycle, HotCycle):
            self.cycle.feed(body)
        elif self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of the current request."""
        if self.parser.should_upgrade():
            return
        if self._constant is not None:
            self._answer_constant(self._constant)
        elif isinstance(self.cycle, HotCycle):
            self.cycle.end()
        elif self.cycle is not None:  # nothing was begun behind a constant answer that closes the connection
            super().on_message_complete()

    def _answer_constant(self, answer: Answer) -> None:
        self._constant = None
        keep_alive = self.parser.should_keep_alive() and not self.gate.closing
        request_id = request_id_of(dict(self.headers).get(b"x-request-id"))
        body = b"" if self.parser.get_method() == b"HEAD" else answer.body
        self.outlet.write(head_of(answer, request_id, keep_alive) + body)
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _decline(self, rest: bytes) -> None:
        """Go on without the protocol that the client offers (HTTP/2, by Java's): the parser stopped before the body."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("There is no proxy here.")
            return
        tokens = [value.lower() for name, value in self.headers if name == b"connection"]
        close = [(b"connection", b"close")] if b"close" in b",".join(tokens) else []
        kept = [item for item in self.headers if item[0] not in (b"connection", b"upgrade", b"http2-settings")]
        lines = [b"%b: %b" % item for item in kept + close]
        head = [b"%b %b HTTP/1.1" % (method, self.url), *lines, b"", rest]
        self.parser = httptools.HttpRequestParser(self)
        # As uvicorn does: what follows a request that closes the connection is no error.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(b"\r\n".join(head))

    def eof_received(self) -> None:
        """The client sends no more: the transport closes, but not before it sent what it was given."""
        self.outlet.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.outlet.close()
        self._settle_answered()
        if self._hot is not None:
            self._hot.lost()
        self._release_unread()
        if self._running is not None:
            # uvicorn tells the last one only of those that were read.
            self._running.disconnected = True
            self._running.message_event.set()
        if isinstance(self.cycle, HotCycle):
            self.cycle = None  # type: ignore[assignment]
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """An answer was handed to the transport. A client that does not read its answers may not ask for more."""
        super().on_response_complete()
        if self.flow.write_paused:
            self.flow.pause_reading()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_idle()

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for as long as a connection may be idle. An answer that nobody reads would keep it for ever."""
        n_before, self._n_unread = self._n_unread, self.transport.get_write_buffer_size()
        if not self._n_unread:
            super().timeout_keep_alive_handler()
        elif self._n_unread == n_before:
            self.transport.abort()
        else:
            self._watch_idle()

    def _watch_idle(self, at_least_s: float = 0.0) -> None:
        self._unset_keepalive_if_required()
        delay_s = max(self.timeout_keep_alive, at_least_s)
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        """The client reads more slowly than was written: the memory counts, and no more is read, until it is gone."""
        super().pause_writing()
        self.flow.pause_reading()
        self._release_unread()
        self._unread = self.gate.dispatcher.admission.hold(self.transport.get_write_buffer_size())

    def _release_unread(self) -> None:
        if self._unread is not None:
            self._unread.release()
            self._unread = None

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._release_unread()
        if not self.pipeline:
            self.flow.resume_reading()
