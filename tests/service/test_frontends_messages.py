"""What keeper and frontends say to each other arrives as it was said."""

from __future__ import annotations

import asyncio
import json
import socket

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.frontends.messages import Channel, Setup, frame, receive_now
from service.options import ServiceOptions

SETUP = Setup(
    number=2,
    sockets=[(5, ""), (6, "/run/s")],
    board=7,
    n_frontends=3,
    passed=False,
    waits=True,
    started_s=1.5,
    service=ServiceOptions(model=("a=b", "c=d"), frontends=3, admin_key="key"),
    work=DispatcherOptions(cpu_workers=3, max_wait_s=0.5),
    gpu=GpuRouteOptions(gpus="0,1"),
    engine_command=["x", "y"],
    changes=[{"kind": "add", "name": "a"}],
)


def test_a_setup() -> None:
    """Options come through JSON as they were, tuples included."""
    assert Setup.from_json(json.loads(json.dumps(SETUP.to_json()))) == SETUP


def test_a_blocking_end() -> None:
    """A message that comes in pieces is one; the end of the other side is None, also inside a message."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(frame("setup", [1]) + frame("drain") + frame("cut")[:-1])
        theirs.close()
        assert receive_now(ours) == ("setup", [1])
        assert receive_now(ours) == ("drain", None)
        assert receive_now(ours) is None
        assert receive_now(ours) is None


def test_a_channel() -> None:
    """Messages of any size arrive in order; one that is sent to nobody is dropped."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        one, other = await Channel.over(ours), await Channel.over(theirs)
        one.send("report", [1, "x" * 1_000_000])
        one.send("loaded", True)
        assert await other.receive() == ("report", [1, "x" * 1_000_000])
        assert await other.receive() == ("loaded", True)
        other.close()
        assert await one.receive() is None
        one.send("loaded", True)
        await one.flush()
        one.close()
        one.send("loaded", True)
        assert await one.receive() is None

    asyncio.run(test())
