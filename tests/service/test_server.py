"""The drain of one process: who is let in until when, and that its end is in time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
import uvloop

from service import server
from service.listeners import GRACE_S
from service.server import EXIT_S, LAST_S, Server


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop on which time passes only while it waits, and waiting takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        selector: Any = vars(self)["_selector"]
        select = selector.select

        def skip(timeout_s: float | None) -> Any:
            assert timeout_s is not None, "nothing is left to wait for"
            self.now_s += timeout_s
            return select(0)

        selector.select = skip

    def time(self) -> float:
        """See `asyncio`."""
        return self.now_s


class Door:
    """A listener that is told to let nobody in any more."""

    passed = False

    def __init__(self, shut: Callable[[], None]) -> None:
        self.shut = shut


def drained(
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: float,
    shut: Callable[[], None],
    close: Callable[[float], None],
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Drain a server. `shut` is called when nobody is let in any more, `close` with what is left for work in flight."""

    async def shutdown(self: uvicorn.Server, sockets: object = None) -> None:
        close(float(self.config.timeout_graceful_shutdown or 0))

    async def main() -> None:
        service: Any = SimpleNamespace(options=SimpleNamespace(drain_timeout_s=timeout_s), drain=lambda: None)
        listeners: Any = [Door(shut)]
        await Server(uvicorn.Config("none", log_config=None), service, listeners).shutdown()

    monkeypatch.setattr(uvicorn.Server, "shutdown", shutdown)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("timeout_s", [0.0, 0.1, 2.0, 30.0])
def test_a_drain_ends_in_its_time(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections come in for a while, the last requests have a moment, and the end has what is left for it."""
    loop = SkippingLoop()
    shut_s: list[float] = []
    ends_s: list[float] = []

    def close(left_s: float) -> None:
        assert loop.time() == pytest.approx(shut_s[0] + min(LAST_S, timeout_s / 8), abs=1e-6)
        ends_s.append(loop.time() + left_s)

    drained(monkeypatch, timeout_s, lambda: shut_s.append(loop.time()), close, lambda: loop)
    assert shut_s == [pytest.approx(min(GRACE_S, timeout_s / 4), abs=1e-6)]
    assert ends_s == [pytest.approx(timeout_s - min(EXIT_S, timeout_s / 2), abs=1e-6)]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_came_is_read_first(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that the machine held up through its drain accepts and reads what has come, then closes who is idle."""
    monkeypatch.setattr(server, "GRACE_S", 0.0)
    monkeypatch.setattr(server, "LAST_S", 0.0)
    listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    accepted: list[socket.socket] = []
    order: list[str] = []

    def shut() -> None:
        asyncio.get_running_loop().add_reader(listener, accept)
        client.connect(listener.getsockname())
        client.send(b"request")

    def accept() -> None:
        accepted.append(listener.accept()[0])
        asyncio.get_running_loop().remove_reader(listener)
        asyncio.get_running_loop().add_reader(accepted[0], read)

    def read() -> None:
        order.append(accepted[0].recv(100).decode())

    with listener, client:
        # Linux chooses a free address.
        listener.bind("")
        listener.listen()
        drained(monkeypatch, 30.0, shut, lambda _: order.append("closed"), new_loop)
        accepted[0].close()
    assert order == ["request", "closed"]
