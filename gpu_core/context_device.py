"""Execution contexts of a GPU through CuPy: memory, capture and replay.

    capture   encode        once for each transfer; twice if text is fetched, because two replays take turns
    replay    header into pinned memory, launch; the last block writes the epoch to a completion word in pinned memory

A context belongs to the thread that uses it, and has a stream of its own: replays of two contexts overlap.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.arena import arrange
from gpu_core.batch_struct import batch_struct
from gpu_core.cuda import (
    Launch,
    address_of,
    cupy,
    device_address,
    driver,
    enqueue,
    graph_launch,
    host_bytes,
    launch_of,
    runtime,
    stream_status,
    taking_memory,
)
from gpu_core.decimal_device import CudaDecimals
from gpu_core.decimal_layout import DECIMAL_KERNEL
from gpu_core.errors import DeviceFault
from gpu_core.execution import DirectLaunch, OutOfDeviceMemory
from gpu_core.join_device import CudaJoin, Sides
from gpu_core.join_layout import starts_at
from gpu_core.ladder import SizeClass
from gpu_core.layout import (
    COMPLETION,
    FLAG_DECIMALS,
    FLAG_IDS,
    FLAG_NORMAL_FORM,
    FLAG_TOKEN_STARTS,
    HEADER,
    KERNELS,
    header_flags,
    may_be_normalized,
    n_tiles,
)
from gpu_core.normal_device import CudaNormal
from gpu_core.transfer import FAR, FAR_RESIDENT, MAPPED_TEXT_BYTES, NEAR, NEAR_RESIDENT, TRANSFERS, Transfer, choose
from gpu_core.waiting import is_reached

if TYPE_CHECKING:
    from gpu_core.device import CudaDevice

FIRST_BYTES = 256 << 10
"""Blocks of contexts up to this size are scheduled before those of larger ones that wait for a multiprocessor."""


class CudaContext:
    """See `ExecutionContext`."""

    def __init__(self, device: CudaDevice, size: SizeClass, pinned: memoryview | None) -> None:
        self.size = size
        self.stream = cupy.cuda.Stream(non_blocking=True, priority=-1 if size.capacity <= FIRST_BYTES else 0)
        self._device, self._stream = device, self.stream.ptr
        self._arena = arena = arrange(size.capacity, size.max_documents, device.options.token_starts)
        self._device_memory = cupy.cuda.Memory(arena.device.n_bytes)
        own = cupy.cuda.PinnedMemory(arena.pinned.n_bytes) if pinned is None else None
        self._pinned_memory = pinned if own is None else own
        self._host = address_of(pinned) if own is None else int(own.ptr)
        self._base = {"pinned": device_address(self._host), "device": int(self._device_memory.ptr)}
        runtime.memsetAsync(self._base["device"], 0, arena.device.n_bytes, self._stream)
        ctypes.memset(self._host, 0, arena.pinned.n_bytes)
        self.text = self._pinned_bytes("text", size.capacity).data
        self.document_starts = self._pinned_words("document_starts")
        self.ids = self._pinned_words("ids")
        self.token_starts = self._pinned_words("token_starts")
        self.document_tokens = self._pinned_words("document_tokens")
        self.decimals = self._pinned_bytes("decimals", arena.lengths["decimals"]).data
        self.document_decimals = self._pinned_words("document_decimals")
        self._reasons = self._pinned_bytes("reasons", arena.lengths["reasons"])
        completion = self._pinned_bytes("completion", COMPLETION.itemsize).data
        self._word, self._results = completion[:8].cast("Q"), completion[8:].cast("I")
        self._pack_header = struct.Struct("<QIIII").pack_into
        self._header = self._pinned_bytes("header", HEADER.itemsize).data
        self._counts = memoryview(bytearray(16)).cast("Q")
        """The epoch of the last replay, and how many fetched their text: whoever launches directly counts here."""
        self._event = None
        if device.options.wait == "block":
            self._event = cupy.cuda.Event(block=True, disable_timing=True)
        self.stream.synchronize()
        ways = [(transfer, turn) for transfer in TRANSFERS for turn in ((0, 1) if transfer.text == "fetched" else (0,))]
        self._launches = {way: self._encode(*way) for way in ways}
        self._graphs = {} if device.options.eager else {way: self._capture(way) for way in self._launches}
        self._executables = {way: graph.graphExec for way, graph in self._graphs.items()}
        self.n_graphs = len(self._graphs)
        self._join: CudaJoin | None = None
        self._launches_of_pieces: list[Launch] = []
        self._last: tuple[int, int, int, Transfer] | None = None
        """Bytes, documents, flags and way of the last replay, unless it was over pieces, or nothing can follow it."""
        self.in_normal_form = False
        self._normal: CudaNormal | None = None
        self._forms = device.normal_forms
        self._unseen = -1
        """Bytes of a first replay of which nobody said yet that it was not in normal form, or -1."""
        self._decimals, self._launches_of_decimals = self._make_decimals()
        for way in ways:
            # Once on an empty batch, so that nothing is left to load; those that fetch take turns by themselves.
            self.launch_as(way[0], 0, 0, 0)
            self.stream.synchronize()
            self.alive()
        self.launch(0, 0, FLAG_DECIMALS, False)
        self.stream.synchronize()
        self.alive()

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """See `ExecutionContext.launch`. Text that is often not in normal form is brought there at once."""
        forms = self._forms
        if forms is not None and not flags & (FLAG_NORMAL_FORM | FLAG_TOKEN_STARTS):
            if self._unseen >= 0:
                forms.doubts.seen(self._unseen, False)
            self._unseen = n_bytes
            if forms.doubts.are_likely(n_bytes) and (normal := self._normalizer()) is not None:
                self._unseen = -1
                # A copy on the device first would take the host longer, and the device as long.
                self._launch_normal(normal, (n_bytes, n_documents, flags, NEAR_RESIDENT if resident else NEAR))
                return
        self._launch_first(n_bytes, n_documents, flags, resident)

    def _launch_first(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        if flags & FLAG_DECIMALS:
            self._last, self.in_normal_form = (n_bytes, n_documents, flags, FAR_RESIDENT), False
            behind = partial(self._decimals.launch, n_bytes=n_bytes, n_documents=n_documents)
            self._launch_two(self._launches_of_decimals, (n_bytes, n_documents, header_flags(flags)), behind)
            return
        self.launch_as(choose(n_bytes, n_documents, resident), n_bytes, n_documents, flags)

    def launch_as(self, transfer: Transfer, n_bytes: int, n_documents: int, flags: int) -> None:
        """The same with a transfer of the caller's choice, for measurements."""
        self._counts[0] += 1
        self._last, self.in_normal_form = (n_bytes, n_documents, flags, transfer), False
        self._pack_header(self._header, 0, self._counts[0], n_bytes, n_documents, flags, 0)
        turn = 0
        if transfer.text == "fetched":
            self._counts[1] += 1
            turn = self._counts[1] & 1
        way = transfer, turn
        try:
            if self._executables:
                runtime.graphLaunch(self._executables[way], self._stream)
            else:
                self._run(self._launches[way])
            if self._event is not None:
                self._event.record(self.stream)
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            raise DeviceFault(str(error)) from None

    def direct(self) -> DirectLaunch | None:
        """See `ExecutionContext.direct`."""
        if not self._executables or self._event is not None:
            return None
        graphs = self._executables[FAR, 0], self._executables[FAR, 1]
        header, completion, starts = (self._address_here(name) for name in ("header", "completion", "document_starts"))
        counts = address_of(self._counts)
        launch = graph_launch()
        return DirectLaunch(launch, graphs, self._stream, header, completion, starts, counts, MAPPED_TEXT_BYTES)

    def launched_directly(self, n_bytes: int) -> None:
        """See `ExecutionContext.launched_directly`."""
        forms = self._forms
        if forms is not None:
            if self._unseen >= 0:
                forms.doubts.seen(self._unseen, False)
            self._unseen = n_bytes
        self._last, self.in_normal_form = (n_bytes, 1, FLAG_IDS, FAR), False

    @property
    def in_doubt(self) -> bool:
        """See `ExecutionContext.in_doubt`."""
        return self._forms is not None and self._forms.doubts.are_any

    @property
    def epoch(self) -> int:
        """Of the last replay."""
        return self._counts[0]

    def launch_normalized(self) -> bool:
        """See `ExecutionContext.launch_normalized`."""
        last, forms = self._last, self._forms
        if forms is None or last is None or not self.any_flagged():
            return False
        n_bytes, n_documents, flags, way = last
        if self.in_normal_form:
            # Only where there is no text are there no tokens.
            if is_repeated := self.n_tokens() == 0:
                self._launch_first(n_bytes, n_documents, flags, way.results == "resident")
            self._last = None
            return is_repeated
        if not may_be_normalized(flags, self.reasons(n_documents)):
            return False
        forms.doubts.seen(n_bytes, True)
        self._unseen = -1
        normal = self._normalizer()
        if normal is not None:
            self._launch_normal(normal, last)
        return normal is not None

    def _launch_normal(self, normal: CudaNormal, batch: tuple[int, int, int, Transfer]) -> None:
        """A replay over the normal form of a batch."""
        n_bytes, n_documents, flags, way = batch
        self._counts[0] += 1
        self._last, self.in_normal_form = batch, True
        results = "decimals" if flags & FLAG_DECIMALS else way.results
        try:
            room = normal.launch(way.text, results, self._counts[0], n_bytes, n_documents, header_flags(flags))
            if flags & FLAG_DECIMALS:
                self._decimals.launch(self._counts[0], room, n_documents)
            if self._event is not None:
                self._event.record(self.stream)
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            raise DeviceFault(str(error)) from None

    def piece_places(self) -> NDArray[np.uint32]:
        """See `ExecutionContext.piece_places`."""
        return self._joiner().places

    def launch_pieces(self, n_bytes: int, n_pieces: int, flags: int) -> None:
        """See `ExecutionContext.launch_pieces`."""
        self._last, self._unseen, self.in_normal_form = None, -1, False
        behind = partial(self._joiner().launch, n_bytes=n_bytes, n_pieces=n_pieces, flags=flags)
        self._launch_two(self._launches_of_pieces, (n_bytes, n_pieces, FLAG_IDS | FLAG_TOKEN_STARTS), behind)

    def _launch_two(self, launches: list[Launch], job: tuple[int, int, int], behind: Callable[[int], None]) -> None:
        """A replay over (bytes, documents) with flags, and a kernel behind it, which is told the epoch.

        Not captured: the second is as large as what it works on.
        """
        self._counts[0] += 1
        self._pack_header(self._header, 0, self._counts[0], *job, 0)
        self._counts[1] += 1
        try:
            self._run(launches[self._counts[1] & 1])
            behind(self._counts[0])
            if self._event is not None:
                self._event.record(self.stream)
        except (runtime.CUDARuntimeError, driver.CUDADriverError) as error:
            raise DeviceFault(str(error)) from None

    def reports(self, n_pieces: int) -> NDArray[np.uint32]:
        """See `ExecutionContext.reports`."""
        return self._joiner().reports(n_pieces)

    def _joiner(self) -> CudaJoin:
        """Memory for joining; token starts of pieces lie in the second half of the ids on the device."""
        if self._join is not None:
            return self._join
        names = ("ids", "document_tokens", "document_starts", "document_flags")
        encoded = {name: self._address("device", name) for name in names}
        encoded["token_starts"] = encoded["ids"] + 4 * starts_at(self.size.capacity)
        pinned = {"ids": "joined_ids", "token_starts": "joined_starts", "document_tokens": "piece_tokens"}
        results = {field: self._address("pinned", name) for name, field in pinned.items()}
        results["completion"] = self._address("pinned", "completion")
        with taking_memory():
            join = CudaJoin(self._device.joining(), self.size.capacity, Sides(encoded, results), self._stream)
        told = {"token_starts": encoded["token_starts"], "completion": join.replay_completion}
        self._launches_of_pieces = [self._encode(FAR_RESIDENT, turn, **told) for turn in (0, 1)]
        self._join = join
        return join

    def _normalizer(self) -> CudaNormal | None:
        """Memory for second replays in normal form; None when there is none, which is asked for once."""
        forms = self._forms
        if self._normal is not None or forms is None:
            return self._normal
        inputs = ("text", "document_starts")
        sources = {"mapped": "pinned", "fetched": "device"}
        read = {way: tuple(self._address(place, name) for name in inputs) for way, place in sources.items()}
        told = self._address("device", "document_flags"), self._address("device", "control")
        try:
            with taking_memory():
                normal = CudaNormal(forms, self.size, read, told, self._stream)
        except OutOfDeviceMemory:
            self._forms = None
            return None
        for results, transfer in (("mapped", NEAR), ("resident", NEAR_RESIDENT)):
            normal.replays[results] = self._encode(transfer, 0, **normal.inputs), self._device.tile
        told_decimals = normal.inputs | {"completion": self._decimals.replay_completion}
        normal.replays["decimals"] = self._encode(NEAR_RESIDENT, 0, **told_decimals), self._device.tile
        self._normal = normal
        return normal

    def _make_decimals(self) -> tuple[CudaDecimals, list[Launch]]:
        """The kernel that writes decimals, and replays that it runs behind, by turn."""
        encoded = {name: self._address("device", name) for name in ("ids", "document_tokens")}
        pinned = {"ids": "written_ids", "document_tokens": "written_tokens"}
        pinned |= {name: name for name in ("decimals", "document_decimals", "completion")}
        results = {field: self._address("pinned", name) for name, field in pinned.items()}
        kernel = self._device.kernels[DECIMAL_KERNEL.name]
        decimals = CudaDecimals(kernel, self.size.capacity, encoded | results, self._stream)
        told = {"token_starts": self._address("pinned", "token_starts"), "completion": decimals.replay_completion}
        return decimals, [self._encode(FAR_RESIDENT, turn, **told) for turn in (0, 1)]

    def time_kernels(self, n_bytes: int, n_documents: int, flags: int) -> float:
        """Microseconds of `encode` on the device, with text and results there."""
        header = self._address("device", "header")
        encode = self._encode(FAR_RESIDENT, 0, header=header, n_fetchers=0)

        def run(epoch: int) -> None:
            self._run(encode)

        self._pack_header(self._header, 0, self._counts[0] + 2, n_bytes, n_documents, flags, 0)
        runtime.memcpy(header, self._address("pinned", "header"), HEADER.itemsize, runtime.memcpyHostToDevice)
        return self._timed(run, n_bytes, n_documents, flags)

    def time_second(self, n_bytes: int, n_documents: int, flags: int) -> float:
        """The same of both kernels of a second replay; 0 where the device does not bring text into normal form."""
        normal = self._normalizer()
        if normal is None:
            return 0.0

        def run(epoch: int) -> None:
            normal.launch("fetched", "resident", epoch, n_bytes, n_documents, flags)

        return self._timed(run, n_bytes, n_documents, flags)

    def _timed(self, run: Callable[[int], None], n_bytes: int, n_documents: int, flags: int) -> float:
        """Microseconds of what `run` launches with an epoch, behind replays over the same batch."""
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        self._counts[0] += 2
        # Replays that fetch come first, so that the device is busy until all that is timed has been launched.
        self._pack_header(self._header, 0, self._counts[0] - 1, n_bytes, n_documents, flags, 0)
        for _ in range(4):
            self._counts[1] += 1
            self._run(self._launches[FAR_RESIDENT, self._counts[1] & 1])
        begin.record(self.stream)
        run(self._counts[0])
        end.record(self.stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end)) * 1000

    def poll(self, n_times: int) -> bool:
        """See `ExecutionContext.poll`."""
        return is_reached(self._word, self._counts[0], n_times)

    def alive(self) -> None:
        """See `ExecutionContext.alive`."""
        status = stream_status(self._stream)
        if status == 0 and not self.poll(1):
            raise DeviceFault("a replay ended without a result")

    def block(self) -> None:
        """See `ExecutionContext.block`."""
        try:
            (self._event or self.stream).synchronize()
        except runtime.CUDARuntimeError as error:
            raise DeviceFault(str(error)) from None

    def any_flagged(self) -> bool:
        """See `ExecutionContext.any_flagged`."""
        return self._results[1] != 0

    def n_tokens(self) -> int:
        """See `ExecutionContext.n_tokens`."""
        return self._results[0]

    def reasons(self, n_documents: int) -> NDArray[np.uint8]:
        """See `ExecutionContext.reasons`."""
        return self._reasons[:n_documents]

    def device_array(self, name: str, length: int, owner: object) -> Any:
        """See `ExecutionContext.device_array`."""
        memory = cupy.cuda.UnownedMemory(self._address("device", name), max(length, 1) * 4, owner)
        return cupy.ndarray((length,), dtype=np.uint32, memptr=cupy.cuda.MemoryPointer(memory, 0))

    def _capture(self, way: tuple[Transfer, int]) -> Any:
        """The graph of one transfer and turn."""
        with self.stream as stream:
            stream.begin_capture()
            self._run(self._launches[way])
            graph = stream.end_capture()
        graph.upload(self.stream)
        return graph

    def _encode(self, transfer: Transfer, turn: int, **fields: int) -> Launch:
        """The kernel of a replay with its parameters, of which some fields may have other values."""
        batch = batch_struct(self._arena, self._base, self.size.capacity, transfer, turn)
        for name, value in fields.items():
            batch[name] = value
        blocks = int(batch["n_fetchers"]) + n_tiles(self.size.capacity, self._device.tile)
        return launch_of(self._device.kernels["encode"], blocks, KERNELS[0].threads, self._device.tables, batch)

    def _run(self, launch: Launch) -> None:
        enqueue(launch, self._stream)

    def _address(self, where: str, name: str) -> int:
        block = self._arena.pinned if where == "pinned" else self._arena.device
        return block.address(self._base[where], name)

    def _address_here(self, name: str) -> int:
        return self._arena.pinned.address(self._host, name)

    def _pinned_bytes(self, name: str, n_bytes: int) -> NDArray[np.uint8]:
        return host_bytes(self._address_here(name), n_bytes, self._pinned_memory)

    def _pinned_words(self, name: str) -> NDArray[np.uint32]:
        length = self._arena.lengths[name]
        return self._pinned_bytes(name, 4 * length).view(np.uint32) if length else np.zeros(0, np.uint32)
