"""One of several frontends: it serves what comes to sockets that it inherited, and hears from its keeper."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID, uuid5

import uvicorn

from gpu_core.errors import SidetokError
from service.additions import Change
from service.banner import show_banner
from service.errors import Conflict
from service.frontends.acceptor import Acceptor
from service.frontends.board import Board
from service.frontends.changes import CHANGE_S
from service.frontends.exposition import families_of
from service.frontends.messages import Channel, Setup, receive_now
from service.frontends.rounds import REPORT_S, UNASKED
from service.listeners import Listener
from service.registry import Model, Registry
from service.server import Server, serve
from service.state import Service

log = logging.getLogger("sidetok.frontends")

SHOW_S = 0.05
"""How often the number of connections is written to the board."""
LEAVE_S = 5.0
"""How long the end waits for the last figures to be told: without them sums would go down."""
BEAT_S = 0.5
"""How often a frontend shows that it moves."""


class Frontend:
    """The place of this process among the frontends. All methods run on the event loop."""

    def __init__(self, setup: Setup, sock: socket.socket) -> None:
        """`sock`: the channel, from which the setup was read."""
        self.setup = setup
        self.number = setup.number
        self.board = Board(setup.board, setup.n_frontends)
        os.close(setup.board)
        self.listeners = [Listener(_inherited(fd), path, passed=True) for fd, path in setup.sockets]
        self.state = "loading"
        """Of all frontends that accept connections, as the keeper said last."""
        self.is_ending = False
        """The whole service ends, not only this frontend."""
        self.is_shut = asyncio.Event()
        """Nobody new can connect any more."""
        self._sock = sock
        self._admitted = asyncio.Event()
        self.models: dict[str, list[Any]] = {}
        """State and error of models that came at run time, by id, in the worst of all frontends."""
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._outcomes: dict[int, Model | SidetokError] = {}
        """What this frontend's own questions for a change came to here."""
        self._early: list[list[Any]] | None = [[0, 0, 0, change] for change in setup.changes]
        """Changes that wait for the models of the start; None = these are loaded."""
        self._numbers = itertools.count(1)
        self._reports: set[asyncio.Task[None]] = set()

    def adopt(self, registry: Registry) -> None:
        """Give the models of the start the ids and times that they have in every frontend."""
        for model in registry.models():
            model.id = uuid5(UUID(int=0), f"{self.setup.started_s} {model.name}").hex
            model.created_s = int(self.setup.started_s)

    def server(self, config: uvicorn.Config, service: Service) -> FrontendServer:
        """The server that accepts from the shared sockets."""
        return FrontendServer(config, service, self)

    async def join(self, service: Service, server: uvicorn.Server) -> None:
        """Begin to hear the keeper."""
        self._service, self._server = service, server
        self._beat()
        self._channel = await Channel.over(self._sock)
        self._channel.send("started")
        self._hearing = asyncio.ensure_future(self._hear())

    async def loaded(self) -> None:
        """Tell that every model is ready or failed; ends when the keeper lets this frontend serve."""
        early, self._early = self._early or [], None
        loads = [load for change in early if (load := self._change(*change)) is not None]
        if loads and self.setup.waits:
            await asyncio.wait(loads)
        registry = self._service.registry
        ended = [model for model in registry.models() if model.state != "loading"]
        self._channel.send("loaded", [registry.ready, {model.id: model.files_digest for model in ended}])
        await self._admitted.wait()

    async def exposition(self) -> bytes:
        """The metrics of the whole service. Raises `TimeoutError` when the keeper does not answer."""
        text: str = await self._ask("scrape", 3 * REPORT_S)
        return text.encode()

    async def change(self, change: Change) -> Model:
        """Have all frontends add or remove a model. Raises `Conflict` and `UnknownModel`, and `TimeoutError`."""
        if self.state != "ready":
            raise Conflict("Models are still loading; try again.")
        outcome = await self._ask("change", 2 * CHANGE_S, change.to_json())
        if outcome is None:
            raise TimeoutError
        if isinstance(outcome, SidetokError):
            raise outcome
        model: Model = outcome
        return model

    async def leave(self) -> None:
        """Tell the last figures."""
        self._hearing.cancel()
        with contextlib.suppress(RuntimeError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._report(UNASKED)
                await self._channel.flush()

    def _beat(self) -> None:
        self.board.beat(self.number)
        asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    async def _hear(self) -> None:
        while (message := await self._channel.receive()) is not None:
            kind, content = message
            if kind == "peers":
                self.state = content
            elif kind == "admitted":
                self._admitted.set()
            elif kind == "models":
                self.models = content
            elif kind == "change":
                if self._early is None:
                    self._change(*content)
                else:
                    self._early.append(content)
            elif kind == "changed":
                self._answer(content, self._outcomes.pop(content, None))
            elif kind == "report":
                task = asyncio.ensure_future(self._report(*content))
                self._reports.add(task)
                task.add_done_callback(self._reports.discard)
            elif kind == "scrape":
                self._answer(*content)
            elif kind == "banner":
                options = self._service.options
                show_banner(options.banner, self._service.registry, [at.address for at in self.listeners])
            elif kind == "shut":
                self.is_shut.set()
            else:
                self._end(at_once=kind == "leave")
        # The system ends a frontend with its keeper; where it does not, there is nothing left to wait for.
        self.is_shut.set()
        self._end(at_once=False)

    async def _ask(self, kind: str, seconds: float, *content: Any) -> Any:
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self._channel.send(kind, [number, *content])
        try:
            return await asyncio.wait_for(answer, seconds)
        finally:
            del self._questions[number]
            self._outcomes.pop(number, None)

    def _answer(self, number: int, answer: Any) -> None:
        question = self._questions.get(number)
        if question is not None and not question.done():
            question.set_result(answer)

    def _change(self, number: int, asker: int, question: int, content: dict[str, Any]) -> asyncio.Future[None] | None:
        """Make a change as all frontends do; when the model is loaded, if one came."""
        load: asyncio.Future[None] | None = None
        outcome: Model | SidetokError
        try:
            outcome, load = self._service.additions.make(Change(**content))
        except SidetokError as error:
            outcome = error
        else:
            if load is not None:
                load.add_done_callback(partial(self._tell_model, outcome))
        if asker == self.number and question in self._questions:
            self._outcomes[question] = outcome
        self._channel.send("changed", [number, content, isinstance(outcome, SidetokError)])
        return load

    def _tell_model(self, model: Model, _: object) -> None:
        self._channel.send("model", [model.id, model.state, model.error, model.files_digest])

    async def _report(self, number: int) -> None:
        if self._service.dispatcher.has_news:
            # Requests whose answers workers sent; nobody woke the loop for them.
            self._service.dispatcher.deliver()
        metrics = await self._service.in_background(self._service.metrics.collect)
        self._channel.send("report", [number, families_of(metrics)])

    def _end(self, at_once: bool) -> None:
        self.is_ending = True
        self._service.drain()
        self._server.should_exit = True
        self._server.force_exit |= at_once


class FrontendServer(Server):
    """A server on sockets that it shares with others."""

    def __init__(self, config: uvicorn.Config, service: Service, frontend: Frontend) -> None:
        super().__init__(config, service, frontend.listeners)
        self._frontend = frontend

    async def listen(self, sockets: list[socket.socket] | None) -> None:
        """Accept in turn with the others."""
        await uvicorn.Server.startup(self, sockets=[])
        self._acceptor = Acceptor(
            sockets or [],
            self.make_protocol,
            lambda: len(self.server_state.connections),
            lambda: self._service.dispatcher.n_in_flight,
            self._frontend.board,
            self._frontend.number,
        )
        self._acceptor.start()
        servers: list[Any] = self.servers
        servers.append(self._acceptor)
        self._show()

    async def let_nobody_in(self, timeout_s: float) -> None:
        """Accept no more: at once when others serve on, else when the keeper shut the sockets and all are in."""
        if self._frontend.is_ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._frontend.is_shut.wait(), timeout_s / 2)
            self._acceptor.hurry()
        if not self._frontend.is_ending or self._frontend.setup.passed:
            self._acceptor.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM drains this frontend alone, and a second one changes nothing; the keeper has the last word."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._drain)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    def _drain(self) -> None:
        self.should_exit = True
        self._service.drain()

    def _show(self) -> None:
        self._acceptor.show()
        asyncio.get_running_loop().call_later(SHOW_S, self._show)


def keep_serving(channel_fd: int) -> int:
    """Serve what the keeper says, until it says otherwise; the exit status. `channel_fd`: a socket, inherited."""
    channel = _inherited(channel_fd)
    message = receive_now(channel)
    if message is None:
        return 0
    frontend = Frontend(Setup.from_json(message[1]), channel)
    setup = frontend.setup
    return serve(setup.service, setup.work, setup.gpu, setup.engine_command, frontend)


def _inherited(fd: int) -> socket.socket:
    """A socket that was inherited under this number; engine processes do not inherit it."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)
