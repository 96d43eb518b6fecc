"""The frontend's end of an engine process: implements `dispatcher.gpu.link.EngineLink`.

Three threads meet here. Whoever holds the route's lock launches; one thread waits for completions; the supervisor's
thread starts the process, loads tokenizers, reads the control stream and ends it all. A launch is one packet out of
shared memory that both sides know, and so is its completion.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.gpu.arena import arena_bytes, make_arena, slot_places
from dispatcher.gpu.child import python_command
from dispatcher.gpu.link import Completion, EngineLost, Slot
from dispatcher.gpu.messages import (
    COMPLETED,
    LAUNCH,
    MAX_PACKET,
    SLOT_BITS,
    BadMessage,
    Fault,
    Hello,
    Load,
    Loaded,
    Progress,
    Refused,
    Report,
    Unload,
    read_report,
    send_order,
)
from gpu_core.layout import REASONS
from gpu_core.options import GpuOptions

ENGINE = "dispatcher.gpu.engine_process"
ENDED = "the engine process ended"
CLOSE_S = 2.0
"""How long an engine may take to end by itself."""
_CLOCK_OF_PROCESS = 2


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What an engine said about its device."""

    name: str
    n_gpus: int
    """GPUs that the process sees."""
    total_bytes: int
    free_bytes: int
    """Device memory that was free when the last tokenizer was loaded."""
    n_captures: int
    """Graphs captured for the tokenizers that are loaded."""
    start_s: float
    """From the start of the process until the device was up."""


@dataclass(slots=True, eq=False)
class _Model:
    key: str
    memory: memoryview
    sent_s: float
    slots: tuple[Slot, ...] = ()
    n_captures: int = 0


@dataclass(slots=True)
class _Shared:
    """What the link knows of one slot."""

    slot: Slot
    reasons: NDArray[np.uint8]
    epoch: int = 0
    n_documents: int = 0
    launched_ns: int = 0
    """0 = no replay is under way."""


class ProcessLink:
    """One engine process, from its start to its end; a new start is a new link."""

    def __init__(self, options: GpuOptions, command: Sequence[str] = ()) -> None:
        """`command` replaces the engine's program; it gets the same arguments."""
        self.facts: DeviceFacts | None = None
        self.refused: dict[str, str] = {}
        """Tokenizers that the engine could not set up, with the reason."""
        self._options, self._command = options, [*(command or python_command(ENGINE))]
        self.places = slot_places(options)
        self._models: dict[int, _Model] = {}
        self._numbers = itertools.count()
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._shared: dict[int, _Shared] = {}
        self._lost = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._launches, self._engine_launches = _socket_pair()
        self.control, self._engine_control = _socket_pair()
        """The control stream; readable means that `receive` has something to do."""
        self._interrupts = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ready = select.poll()
        self._ready.register(self._launches, select.POLLIN)
        self._ready.register(self._interrupts, select.POLLIN)
        # An interrupt may come from a garbage collection in the middle of a method that holds it.
        self._guard = threading.RLock()
        self._waiting = self._closed = self._is_interrupted = False
        self._started_s = self._heard_s = 0.0
        self._cpu_ns = 0

    # --- For the route -----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """See `EngineLink`: the device is up, whatever tokenizers are loaded by now."""
        return self.facts is not None and not self._lost

    def slots(self, model_key: str) -> Sequence[Slot]:
        """See `EngineLink`."""
        return self._slots.get(model_key, ())

    def launch(self, slot: Slot, n_bytes: int, n_documents: int, flags: int) -> None:
        """See `EngineLink`."""
        if self._lost:
            raise EngineLost(self._lost)
        shared = self._shared.get(slot.number)
        if shared is None:
            raise EngineLost(self._lost or ENDED)
        shared.epoch += 1
        shared.n_documents = n_documents
        shared.launched_ns = time.monotonic_ns()
        packet = LAUNCH.pack(slot.number, flags, shared.epoch, n_bytes, n_documents)
        try:
            self._launches.send(packet)
        except OSError:
            raise EngineLost(self._lost or ENDED) from None

    def wait(self, timeout_s: float | None) -> list[Completion]:
        """See `EngineLink`."""
        with self._guard:
            if self._closed or self._lost:
                raise EngineLost(self._lost or "the engine was closed")
            self._waiting = True
        try:
            if timeout_s == 0:
                return self._take()
            return self._wait(None if timeout_s is None else 1000 * timeout_s)
        finally:
            with self._guard:
                self._waiting = False
                if self._closed:
                    self._release()

    def interrupt(self) -> None:
        """See `EngineLink`."""
        with self._guard:
            if self._interrupts >= 0:
                self._is_interrupted = True
                os.eventfd_write(self._interrupts, 1)

    def watch(self, watch: Callable[[int], object]) -> None:
        """Call `watch` with each descriptor that becomes readable when `wait` has something to do, unless it closed."""
        with self._guard:
            if not self._closed:
                watch(self._launches.fileno())
                watch(self._interrupts)

    def _take(self) -> list[Completion]:
        """What is there, without a wait: whoever asks has looked at the descriptors."""
        if self._is_interrupted:
            self._is_interrupted = False
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._interrupts)
        return self._receive_completions(socket.MSG_DONTWAIT)

    def _wait(self, timeout_ms: float | None) -> list[Completion]:
        completions: list[Completion] = []
        for fd, _events in self._ready.poll(timeout_ms):
            if fd == self._interrupts:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            else:
                completions += self._receive_completions()
        return completions

    def _receive_completions(self, flags: int = 0) -> list[Completion]:
        try:
            packet = self._launches.recv(MAX_PACKET, flags)
        except BlockingIOError:
            return []
        except OSError:
            packet = b""
        if not packet:
            self._lost = self._lost or ENDED
            raise EngineLost(self._lost)
        if len(packet) % COMPLETED.size:
            self._lost = f"a completion of {len(packet)} bytes"
            raise EngineLost(self._lost)
        return [self._completion(*fields) for fields in COMPLETED.iter_unpack(packet)]

    def _completion(
        self, number: int, n_tokens: int, epoch: int, replay_ns: int, cpu_ns: int, n_flagged: int, n_second: int
    ) -> Completion:
        shared = self._shared.get(number)
        if shared is None or not shared.launched_ns or shared.epoch != epoch:
            self._lost = f"a completion of slot {number} that was not launched"
            raise EngineLost(self._lost)
        shared.launched_ns = 0
        if number >> SLOT_BITS not in self._models:
            del self._shared[number]
        completion = Completion(shared.slot, n_tokens, replay_ns, cpu_ns, n_second=n_second)
        if n_flagged:
            reasons = shared.reasons[: shared.n_documents]
            try:
                completion.needs_cpu = {int(i): REASONS[int(reasons[i])] for i in np.flatnonzero(reasons)}
            except KeyError:
                self._lost = "a reason that nobody knows"
                raise EngineLost(self._lost) from None
        return completion

    # --- For the supervisor ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process. Raises `OSError`. Belongs to a thread that lives as long as the engine should."""
        self._started_s = self._heard_s = time.monotonic()
        fields = json.dumps(asdict(self._options))
        fds = self._engine_launches.fileno(), self._engine_control.fileno()
        self._process = subprocess.Popen(
            [*self._command, str(fds[0]), str(fds[1]), str(os.getpid()), fields],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            # Signals of the terminal are for the frontend, which tells the engine.
            start_new_session=True,
        )
        self._engine_launches.close()
        self._engine_control.close()

    def load(self, key: str, tables_fd: int) -> None:
        """Let the engine set up a tokenizer from a file of its tables; `slots` shows it when it can be used.

        Raises `OSError` when there is no memory for its arena or no engine.
        """
        arena_fd, memory = make_arena(arena_bytes(self.places))
        number = next(self._numbers)
        try:
            self._models[number] = _Model(key, memory, time.monotonic())
            send_order(self.control, Load(number, key, tables_fd, arena_fd))
        finally:
            os.close(arena_fd)

    def withdraw(self, key: str) -> None:
        """Show no slots of a tokenizer any more. Whoever has some from before must be told before `unload`."""
        self._slots = {other: slots for other, slots in self._slots.items() if other != key}

    def unload(self, key: str) -> None:
        """Let go of a tokenizer, whose slots nobody launches any more. Replays under way are still completed.

        Raises `OSError`.
        """
        self.withdraw(key)
        self.refused.pop(key, None)
        for number in [number for number, model in self._models.items() if model.key == key]:
            for slot in self._models.pop(number).slots:
                if not self._shared[slot.number].launched_ns:
                    del self._shared[slot.number]
            send_order(self.control, Unload(number))

    def receive(self) -> Report | None:
        """Take the next report from the control stream; None at its end. Raises `EngineLost` for nonsense."""
        packet = _next_packet(self.control)
        if not packet:
            self._lost = self._lost or ENDED
            return None
        try:
            report = read_report(packet)
            self._note(report)
        except BadMessage as error:
            self._lost = str(error)
            raise EngineLost(str(error)) from None
        self._heard_s = time.monotonic()
        return report

    def next_report(self) -> Report | None:
        """Wait for the next report that says more than that the engine is at work. See `receive`."""
        while isinstance(report := self.receive(), Progress):
            pass
        return report

    @property
    def lost_reason(self) -> str:
        """Why the engine is lost; empty while it is not."""
        return self._lost

    @property
    def pid(self) -> int:
        """Of the process; 0 before it was started."""
        return self._process.pid if self._process else 0

    def longest_replay_s(self) -> float:
        """For how long the oldest replay has been under way; 0 = there is none."""
        launched = [shared.launched_ns for shared in list(self._shared.values()) if shared.launched_ns]
        return (time.monotonic_ns() - min(launched)) / 1e9 if launched else 0.0

    def silence_s(self) -> float:
        """For how long the engine has said nothing while it starts or loads tokenizers; 0 = it does neither."""
        sent = [model.sent_s for model in self._models.values() if not model.slots]
        if self.facts is None:
            return time.monotonic() - self._heard_s if self._heard_s else 0.0
        return time.monotonic() - max(min(sent), self._heard_s) if sent else 0.0

    def cpu_ns(self) -> int:
        """CPU time of the process so far, all threads; callable from any thread."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(OSError):
                self._cpu_ns = time.clock_gettime_ns(~process.pid << 3 | _CLOCK_OF_PROCESS)
        return self._cpu_ns

    def kill(self, reason: str) -> None:
        """End the process at once; whoever waits gets `EngineLost` with the reason."""
        self._lost = self._lost or reason
        if self._process is not None:
            self.cpu_ns()
            self._process.kill()

    def close(self, timeout_s: float = CLOSE_S) -> int | None:
        """End the process, kindly at first, and give back what it took; its exit status, None if it outlives SIGKILL.

        Whoever waits gets `EngineLost`. May be called again.
        """
        self._lost = self._lost or "the engine was closed"
        self.cpu_ns()
        for end in (self._launches, self._engine_launches, self.control, self._engine_control):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        status = self._reap(timeout_s)
        with self._guard:
            self._closed = True
            if not self._waiting:
                self._release()
        return status

    def _reap(self, timeout_s: float) -> int | None:
        if self._process is None:
            return 0
        for _attempt in range(2):
            try:
                return self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return None

    def _release(self) -> None:
        """Close every descriptor. The memory goes when nobody holds a slot any more."""
        for end in (self._launches, self._engine_launches, self.control, self._engine_control):
            end.close()
        if self._interrupts >= 0:
            os.close(self._interrupts)
            self._interrupts = -1
        self._slots = {}
        self._shared.clear()
        self._models.clear()

    def _note(self, report: Report) -> None:
        if isinstance(report, Hello):
            start_s = time.monotonic() - self._started_s
            self.facts = DeviceFacts(
                report.device_name, report.n_gpus, report.total_bytes, report.free_bytes, 0, start_s
            )
        elif isinstance(report, Fault):
            self._lost = self._lost or report.reason
        elif isinstance(report, Refused):
            model = self._models.pop(report.model, None)
            if model is not None:
                self.refused[model.key] = report.reason
        elif isinstance(report, Loaded) and report.model in self._models:
            self._add_slots(report)

    def _add_slots(self, report: Loaded) -> None:
        model, old = self._models[report.model], self.facts
        if old is None or model.slots or not report.places <= set(range(len(self.places))):
            raise BadMessage(f"a tokenizer with the slots {sorted(report.places)}")
        slots = []
        for i in sorted(report.places):
            number = report.model << SLOT_BITS | i
            slot = self.places[i].slot(number, model.key, model.memory)
            self._shared[number] = _Shared(slot, self.places[i].reasons(model.memory))
            slots.append(slot)
        model.slots, model.n_captures = tuple(slots), report.n_captures
        n_captures = sum(model.n_captures for model in self._models.values())
        self.facts = DeviceFacts(old.name, old.n_gpus, old.total_bytes, report.free_bytes, n_captures, old.start_s)
        self._slots = self._slots | {model.key: model.slots}


def _next_packet(stream: socket.socket) -> bytes:
    """The next packet; empty at the end."""
    for _attempt in range(2):
        try:
            return stream.recv(MAX_PACKET)
        except ConnectionResetError:
            # The other end left something unread. That is told once, before what it said at last.
            continue
        except OSError:
            break
    return b""


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
