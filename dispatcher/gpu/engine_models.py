"""The tokenizers of an engine process, set up and taken down on a thread of their own while replays go on.

    LOAD ─► map and register the arena ─► tables to the device ─► capture every slot ─► handed to the replay loop

Nothing here holds up the loop for long: the driver works without the interpreter, and what needs it gives way within
`SWITCH_S`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass

from dispatcher.gpu.arena import SlotPlace, arena_bytes, map_arena, slot_places
from dispatcher.gpu.beats import beating
from dispatcher.gpu.messages import SLOT_BITS, Load, Loaded, Progress, Refused, Unload, receive_order, send_report
from dispatcher.gpu.table_builder import read_tables
from gpu_core.contexts import set_up
from gpu_core.errors import DeviceFault, DeviceUnavailable
from gpu_core.execution import ExecutionContext, Gpu, OutOfDeviceMemory
from gpu_core.ladder import SizeClass
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables
from gpu_core.waiting import Prediction

SWITCH_S = 1e-4


@dataclass(slots=True, eq=False)
class EngineSlot:
    """The engine's side of a slot."""

    context: ExecutionContext
    prediction: Prediction
    """Of replays over text as it is, shared by the slots of a tokenizer."""
    of_normal_form: Prediction
    """The same of those over text that the device brings into normal form."""
    busy: bool = False
    """Whether a replay is under way."""


class Model:
    """One tokenizer on the device."""

    def __init__(self, gpu: Gpu, order: Load, options: GpuOptions, channel: socket.socket) -> None:
        """Takes a second the first time. Says on the channel that it goes on.

        Raises `DeviceUnavailable`, `DeviceFault`; keeps none of the descriptors.
        """
        begin = time.perf_counter()
        self.number, self._gpu, self._channel = order.model, gpu, channel
        self.slots: dict[int, EngineSlot] = {}
        tables = read_tables(order.tables_fd)
        places = slot_places(options)
        self._memory = _mapped(order.arena_fd, places)
        self._registered: list[memoryview] = []
        try:
            self._register(places)
            self._capture(order.key, tables, places, options)
        except DeviceFault:
            raise
        except Exception:
            self.free()
            raise
        first = self.number << SLOT_BITS
        self.report = Loaded(
            self.number,
            frozenset(number - first for number in self.slots),
            gpu.memory_bytes()[0],
            sum(slot.context.n_graphs for slot in self.slots.values()),
            int(1000 * (time.perf_counter() - begin)),
        )

    def free(self) -> None:
        """Give everything back. No replay may be under way."""
        self._gpu.attach()
        self.slots.clear()
        while self._registered:
            self._gpu.unregister(self._registered.pop())
        self._memory = memoryview(b"")

    def _register(self, places: tuple[SlotPlace, ...]) -> None:
        # In pieces: the driver takes no launches while it pins one.
        for place in places:
            piece = place.all_of_it(self._memory)
            try:
                self._gpu.register(piece)
            except OutOfDeviceMemory as error:
                raise DeviceUnavailable(str(error)) from None
            self._registered.append(piece)
            send_report(self._channel, Progress())

    def _capture(self, key: str, tables: Tables, places: tuple[SlotPlace, ...], options: GpuOptions) -> None:
        with beating(self._channel):
            # Kernels are compiled, unless a cache has them.
            device = self._gpu.device(key, tables, options)
        by_class = {(place.size, place.number): i for i, place in enumerate(places)}

        def make(size: SizeClass, number: int) -> ExecutionContext:
            send_report(self._channel, Progress())
            return device.context(size, places[by_class[size, number]].pinned(self._memory))

        predictions = Prediction(), Prediction()
        for size, contexts in set_up(options, make).items():
            for number, context in enumerate(contexts):
                i = by_class[size, number]
                self.slots[self.number << SLOT_BITS | i] = EngineSlot(context, *predictions)


class ModelLoader(threading.Thread):
    """Carries out the orders of the control stream. What the replay loop has to know lies in `news`."""

    def __init__(self, gpu: Gpu, channel: socket.socket, options: GpuOptions) -> None:
        super().__init__(name="sidetok-models", daemon=True)
        self.news: deque[Model | Refused | Unload | BaseException] = deque()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._gpu, self._channel, self._options = gpu, channel, options

    def run(self) -> None:
        """Until the end of the stream."""
        sys.setswitchinterval(SWITCH_S)
        try:
            self._gpu.attach()
            while (order := receive_order(self._channel)) is not None:
                self._tell(order if isinstance(order, Unload) else self._load(order))
        except BaseException as error:  # the loop decides how the process ends
            self._tell(error)

    def _load(self, order: Load) -> Model | Refused:
        try:
            return Model(self._gpu, order, self._options, self._channel)
        except DeviceFault:
            raise
        except DeviceUnavailable as error:
            return Refused(order.model, str(error))
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:  # one tokenizer must not keep the others from the device
            return Refused(order.model, f"{type(error).__name__} while it was loaded")
        finally:
            os.close(order.tables_fd)
            os.close(order.arena_fd)

    def _tell(self, news: Model | Refused | Unload | BaseException) -> None:
        self.news.append(news)
        os.eventfd_write(self.wake_fd, 1)


def _mapped(fd: int, places: tuple[SlotPlace, ...]) -> memoryview:
    try:
        return map_arena(fd, arena_bytes(places))
    except (OSError, ValueError) as error:
        raise DeviceUnavailable(f"the shared memory cannot be mapped: {error}") from None
