"""What the frontend and an engine process say to each other: one packet each, over two SOCK_SEQPACKET pairs.

    launches   ─► LAUNCH                      ◄─ COMPLETED, one or several in a packet
    control    ─► LOAD, UNLOAD                ◄─ HELLO once, LOADED or REFUSED for each LOAD, FAULT before the end;
                                                 PROGRESS now and then until HELLO, and from LOAD to its answer

LOAD carries two descriptors: a file with the tables, and the arena of the slots. The end of a stream means that the
other side is gone.
"""

from __future__ import annotations

import socket
import struct
from array import array
from dataclasses import dataclass

from gpu_core.errors import InternalError

LAUNCH = struct.Struct("<IIQII")
"""slot, flags, epoch, bytes, documents."""
COMPLETED = struct.Struct("<IIQQQII")
"""slot, tokens, epoch, nanoseconds from launch to completion, CPU nanoseconds, flagged documents, replays behind the
first one."""
_ORDER = struct.Struct("<II")
"""kind, model."""
_HELLO = struct.Struct("<IIQQ")
"""kind, GPUs that the process sees, free and total device memory."""
_LOADED = struct.Struct("<IIQQII")
"""kind, model, bits of the slots that were set up, free device memory, captured graphs, milliseconds."""
_FAULT = struct.Struct("<II")
"""kind, whether another start would fail as well."""

MAX_PACKET = 4096
COMPLETED_PER_PACKET = MAX_PACKET // COMPLETED.size
SLOT_BITS = 8
"""Number of a slot: `model << SLOT_BITS | place`. A model is numbered by the engine's incarnation, and never again."""
_LOAD, _UNLOAD, _HELLO_KIND, _LOADED_KIND, _REFUSED, _FAULT_KIND, _PROGRESS = range(1, 8)


class BadMessage(InternalError):
    """A packet that makes no sense: the other side is not what it should be."""


@dataclass(frozen=True, slots=True)
class Load:
    """Set up a tokenizer. `tables_fd` and `arena_fd` belong to whoever received the message."""

    model: int
    key: str
    tables_fd: int
    arena_fd: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Forget a tokenizer, as soon as none of its replays is under way."""

    model: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The device is up."""

    n_gpus: int
    free_bytes: int
    total_bytes: int
    device_name: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer can be used."""

    model: int
    places: frozenset[int]
    """Which of its slots were set up."""
    free_bytes: int
    n_captures: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A tokenizer could not be set up."""

    model: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The engine ends. `permanent`: another start would fail as well."""

    permanent: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """The engine is at work, on its start or on a tokenizer."""


Order = Load | Unload
Report = Hello | Loaded | Refused | Fault | Progress


def send_order(channel: socket.socket, order: Order) -> None:
    """Frontend to engine. Never waits for one that does not read; raises `OSError`."""
    if isinstance(order, Unload):
        channel.send(_ORDER.pack(_UNLOAD, order.model), socket.MSG_DONTWAIT)
        return
    packet = _ORDER.pack(_LOAD, order.model) + order.key.encode()
    fds = array("i", [order.tables_fd, order.arena_fd])
    channel.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)], socket.MSG_DONTWAIT)


def receive_order(channel: socket.socket) -> Order | None:
    """The next one, or None at the end of the stream. Raises `BadMessage`."""
    packet, fds, _flags, _address = socket.recv_fds(channel, MAX_PACKET, 2, socket.MSG_CMSG_CLOEXEC)
    if not packet:
        return None
    kind, model = _ORDER.unpack_from(_at_least(packet, _ORDER))
    if kind == _LOAD and len(fds) == 2:
        return Load(model, packet[_ORDER.size :].decode(), *fds)
    if kind == _UNLOAD:
        return Unload(model)
    raise BadMessage(f"an order of kind {kind} with {len(fds)} descriptors")


def send_report(channel: socket.socket, report: Report) -> None:
    """Engine to frontend. Raises `OSError`."""
    channel.send(_packed(report)[:MAX_PACKET])


def read_report(packet: bytes) -> Report:
    """What a packet of the control stream says. Raises `BadMessage`."""
    kind, number = _ORDER.unpack_from(_at_least(packet, _ORDER))
    if kind == _HELLO_KIND:
        _kind, n_gpus, free, total = _HELLO.unpack_from(_at_least(packet, _HELLO))
        return Hello(n_gpus, free, total, packet[_HELLO.size :].decode(errors="replace"))
    if kind == _LOADED_KIND:
        _kind, model, bits, free, n_captures, took_ms = _LOADED.unpack_from(_at_least(packet, _LOADED))
        return Loaded(model, frozenset(i for i in range(64) if bits >> i & 1), free, n_captures, took_ms)
    if kind == _REFUSED:
        return Refused(number, packet[_ORDER.size :].decode(errors="replace"))
    if kind == _FAULT_KIND:
        return Fault(bool(number), packet[_FAULT.size :].decode(errors="replace"))
    if kind == _PROGRESS:
        return Progress()
    raise BadMessage(f"a report of kind {kind}")


def _packed(report: Report) -> bytes:
    if isinstance(report, Hello):
        head = _HELLO.pack(_HELLO_KIND, report.n_gpus, report.free_bytes, report.total_bytes)
        return head + report.device_name.encode()
    if isinstance(report, Loaded):
        bits = sum(1 << place for place in report.places)
        return _LOADED.pack(_LOADED_KIND, report.model, bits, report.free_bytes, report.n_captures, report.took_ms)
    if isinstance(report, Refused):
        return _ORDER.pack(_REFUSED, report.model) + report.reason.encode()
    if isinstance(report, Progress):
        return _ORDER.pack(_PROGRESS, 0)
    return _FAULT.pack(_FAULT_KIND, report.permanent) + report.reason.encode()


def _at_least(packet: bytes, layout: struct.Struct) -> bytes:
    if len(packet) < layout.size:
        raise BadMessage(f"a packet of {len(packet)} bytes")
    return packet
