"""Execution contexts in ordinary memory, with any function in the place of the kernels: the encoder without a GPU."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.arena import arrange
from gpu_core.doubts import Doubts
from gpu_core.errors import DeviceFault
from gpu_core.execution import DirectLaunch, ExecutionContext, OutOfDeviceMemory
from gpu_core.join_layout import fits, max_pieces
from gpu_core.ladder import SizeClass
from gpu_core.layout import (
    FLAG_DECIMALS,
    FLAG_IDS,
    FLAG_NORMAL_FORM,
    FLAG_TOKEN_STARTS,
    REASON_NOT_NORMAL,
    header_flags,
    may_be_normalized,
)
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables
from gpu_core.twin_decimal import write_decimals
from gpu_core.twin_join import EncodedPieces, Joined, join_pieces

EncodeOne = Callable[[bytes], Sequence[tuple[int, int]] | int]
"""A document -> its (id, byte position) pairs, or the reason (a key of `layout.REASONS`) why it needs the CPU."""

POISON = 0xDEADBEEF
TOTAL_BYTES = 1 << 40
"""Memory of a `HostGpu`."""


class HostDevice:
    """Encodes with a function. `memory_bytes` is what all contexts together may take.

    A replay is complete at its `polls`-th look that comes at least `replay_s` after the launch. After `fail_after`
    launches the device is dead.
    """

    def __init__(
        self,
        encode: EncodeOne,
        *,
        memory_bytes: int = 1 << 62,
        polls: int = 1,
        replay_s: float = 0.0,
        fail_after: int = 1 << 62,
        token_starts: bool = True,
        encode_normal: EncodeOne | None = None,
        normalize: Callable[[bytes], bytes | None] | None = None,
        doubts: Doubts | None = None,
        join: Callable[[EncodedPieces], Joined] = join_pieces,
    ) -> None:
        """`encode_normal` encodes where the text is said to be in normal form; by default that changes nothing.

        `normalize` brings a document into normal form, or says with None that it cannot; without it there are no second
        replays. `doubts` says, as on a GPU, which text goes there at once; without them none does. `join` is what joins
        pieces.
        """
        self.join, self.normalize, self.doubts = join, normalize, doubts
        self.name = "host"
        self.encode_normal = encode_normal or encode
        self.encode, self.polls, self.fail_after = encode, polls, fail_after
        self.replay_s = replay_s
        self.n_launches = 0
        self._memory_bytes, self._token_starts = memory_bytes, token_starts
        self._contexts: weakref.WeakSet[HostContext] = weakref.WeakSet()

    @property
    def taken_bytes(self) -> int:
        """What its contexts take."""
        return sum(context.size.device_bytes(self._token_starts) for context in self._contexts)

    def context(self, size: SizeClass, pinned: memoryview | None = None) -> ExecutionContext:
        """See `Device.context`."""
        if self.taken_bytes + size.device_bytes(self._token_starts) > self._memory_bytes:
            raise OutOfDeviceMemory
        context = HostContext(self, size, self._token_starts, pinned)
        self._contexts.add(context)
        return context


class HostGpu:
    """See `Gpu`: a host with a device for each tokenizer, made from its key and its tables."""

    def __init__(self, device_of: Callable[[str, Tables], HostDevice]) -> None:
        self.name, self.n_gpus = "host", 1
        self._device_of = device_of
        self._devices: weakref.WeakSet[HostDevice] = weakref.WeakSet()

    def attach(self) -> None:
        """See `Gpu.attach`."""

    def memory_bytes(self) -> tuple[int, int]:
        """See `Gpu.memory_bytes`."""
        return TOTAL_BYTES - sum(device.taken_bytes for device in self._devices), TOTAL_BYTES

    def register(self, memory: memoryview) -> None:
        """See `Gpu.register`."""

    def unregister(self, memory: memoryview) -> None:
        """See `Gpu.unregister`."""

    def device(self, key: str, tables: Tables, options: GpuOptions) -> HostDevice:
        """See `Gpu.device`."""
        device = self._device_of(key, tables)
        self._devices.add(device)
        return device


@dataclass(frozen=True, slots=True)
class _Job:
    """What a replay has to do."""

    text: bytes
    starts: list[int]
    flags: int
    results: dict[str, NDArray[np.uint32]]
    encode: EncodeOne


class HostContext:
    """See `ExecutionContext`. What a replay does not write holds a pattern that is no id."""

    def __init__(self, device: HostDevice, size: SizeClass, token_starts: bool, pinned: memoryview | None) -> None:
        self.size, self.n_graphs = size, 0
        self._device = device
        arena = arrange(size.capacity, size.max_documents, token_starts)
        block = memoryview(bytearray(arena.pinned.n_bytes)) if pinned is None else pinned
        words = {
            name: np.frombuffer(block, np.uint32, arena.lengths[name], arena.pinned.offsets.get(name, 0))
            for name in ("document_starts", "document_decimals", "ids", "token_starts", "document_tokens")
        }
        first, first_decimal = arena.pinned.offsets["text"], arena.pinned.offsets["decimals"]
        self.text = block[first : first + size.capacity]
        self.decimals = block[first_decimal : first_decimal + arena.lengths["decimals"]]
        first = arena.pinned.offsets["reasons"]
        self._reasons = np.frombuffer(block, np.uint8, size.max_documents, first)
        self._reasons[:] = POISON & 0xFF
        self.document_starts = words.pop("document_starts")
        self.document_decimals = words.pop("document_decimals")
        self._host = words
        self.ids, self.token_starts, self.document_tokens = words.values()
        for array in words.values():
            array[:] = POISON
        self._resident = {name: np.full(array.shape, POISON, np.uint32) for name, array in words.items()}
        self._any_flagged = False
        self._places: NDArray[np.uint32] | None = None
        self._reports = np.zeros(0, np.uint32)
        self._joined_flags: int | None = None
        self._polls_left = self._n_tokens = 0
        self._due_s = 0.0
        self._pending: _Job | None = None
        self._n_tries = 0
        self.in_normal_form = False
        self._unseen = -1
        """Bytes of a first replay of which nobody said yet that it was not in normal form, or -1."""

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """See `ExecutionContext.launch`. The text is read now; results appear at the last poll only."""
        encode = self._device.encode_normal if flags & FLAG_NORMAL_FORM else self._device.encode
        self.in_normal_form = self._is_likely_doubtful(n_bytes, flags)
        if self.in_normal_form:
            forms, _has_room = self._forms(self._texts(n_bytes, n_documents))
            encode = self._encode_forms(forms)
        self._start(n_bytes, n_documents, flags, self._resident if resident else self._host, encode)
        self._joined_flags, self._n_tries = None, 2 if self.in_normal_form else 1

    def _is_likely_doubtful(self, n_bytes: int, flags: int) -> bool:
        """Whether to go into normal form at once; by the rules of `CudaContext.launch`."""
        doubts = self._device.doubts
        if doubts is None or self._device.normalize is None or flags & (FLAG_NORMAL_FORM | FLAG_TOKEN_STARTS):
            return False
        if self._unseen >= 0:
            doubts.seen(self._unseen, False)
        is_likely = doubts.are_likely(n_bytes)
        self._unseen = -1 if is_likely else n_bytes
        return is_likely

    in_doubt = False

    def direct(self) -> DirectLaunch | None:
        """See `ExecutionContext.direct`."""
        return None

    def launched_directly(self, n_bytes: int) -> None:
        """See `ExecutionContext.launched_directly`."""
        raise NotImplementedError

    def launch_normalized(self) -> bool:
        """See `ExecutionContext.launch_normalized`."""
        last, n_tries = self._pending, self._n_tries
        if last is None or self._device.normalize is None or self._joined_flags is not None or not self._any_flagged:
            return False
        texts = self._texts(len(last.text), len(last.starts) - 1)
        forms, has_room = self._forms(texts)
        if n_tries == 1 and may_be_normalized(last.flags, self.reasons(len(texts))):
            if self._device.doubts is not None:
                self._device.doubts.seen(len(last.text), True)
            encode, self._unseen = self._encode_forms(forms), -1
        elif n_tries == 2 and not has_room:
            encode = self._device.encode
        else:
            return False
        self._start(len(last.text), len(texts), last.flags, last.results, encode)
        self._n_tries, self.in_normal_form = n_tries + 1, n_tries == 1
        return True

    def _texts(self, n_bytes: int, n_documents: int) -> list[bytes]:
        """The documents that lie there."""
        text = bytes(self.text[:n_bytes])
        return [text[start:end] for start, end in pairwise(self.document_starts[: n_documents + 1].tolist())]

    def _forms(self, texts: list[bytes]) -> tuple[list[bytes | None], bool]:
        """Documents in normal form, None for what is left; and whether there is room, without which all are left."""
        normalize = self._device.normalize
        forms = [None if normalize is None else normalize(text) for text in texts]
        n_bytes = sum(len(form or text) for form, text in zip(forms, texts, strict=True))
        return (forms, True) if n_bytes <= self.size.capacity else ([None] * len(texts), False)

    def _encode_forms(self, forms: Sequence[bytes | None]) -> EncodeOne:
        """What encodes one document after the other in the form that it has here; without one it is left."""
        places = iter(forms)

        def encode(_document: bytes) -> Sequence[tuple[int, int]] | int:
            form = next(places)
            return REASON_NOT_NORMAL if form is None else self._device.encode_normal(form)

        return encode

    def piece_places(self) -> NDArray[np.uint32]:
        """See `ExecutionContext.piece_places`."""
        if self._places is None:
            self._places = np.zeros(max_pieces(self.size.capacity), np.uint32)
        return self._places

    def launch_pieces(self, n_bytes: int, n_pieces: int, flags: int) -> None:
        """See `ExecutionContext.launch_pieces`."""
        if not fits(n_bytes, n_pieces, self.size.capacity, self.size.max_documents):
            raise DeviceFault("pieces beyond the size class")
        lengths = {"ids": n_bytes, "token_starts": n_bytes, "document_tokens": n_pieces + 1}
        apart = {name: np.full(length, POISON, np.uint32) for name, length in lengths.items()}
        self._start(n_bytes, n_pieces, FLAG_IDS | FLAG_TOKEN_STARTS, apart, self._device.encode)
        self._joined_flags, self._unseen, self.in_normal_form = flags, -1, False

    def reports(self, n_pieces: int) -> NDArray[np.uint32]:
        """See `ExecutionContext.reports`."""
        return self._reports[:n_pieces].copy()

    def _start(
        self, n_bytes: int, n_documents: int, flags: int, results: dict[str, NDArray[np.uint32]], encode: EncodeOne
    ) -> None:
        self._device.n_launches += 1
        if n_bytes > self.size.capacity or n_documents > self.size.max_documents:
            raise DeviceFault("a batch beyond the size class")
        starts = self.document_starts[: n_documents + 1].tolist()
        text = bytes(self.text[:n_bytes])
        self._polls_left = self._device.polls
        self._due_s = time.perf_counter() + self._device.replay_s
        self._pending = _Job(text, starts, flags, results, encode)

    def poll(self, n_times: int) -> bool:
        """See `ExecutionContext.poll`."""
        if self._device.n_launches > self._device.fail_after or time.perf_counter() < self._due_s:
            return False
        before, self._polls_left = self._polls_left, self._polls_left - n_times
        if before > 0 >= self._polls_left and self._pending is not None:
            self._finish(self._pending)
            if self._joined_flags is not None:
                self._join(self._joined_flags, self._pending)
        return self._polls_left <= 0

    def alive(self) -> None:
        """See `ExecutionContext.alive`."""
        if self._device.n_launches > self._device.fail_after:
            raise DeviceFault("the device is dead")

    def block(self) -> None:
        """See `ExecutionContext.block`."""
        self.alive()
        while not self.poll(1):
            pass

    def any_flagged(self) -> bool:
        """See `ExecutionContext.any_flagged`."""
        return self._any_flagged if self._joined_flags is None else bool(self._reports.any())

    def n_tokens(self) -> int:
        """See `ExecutionContext.n_tokens`."""
        return self._n_tokens

    def reasons(self, n_documents: int) -> NDArray[np.uint8]:
        """See `ExecutionContext.reasons`."""
        return self._reasons[:n_documents]

    def device_array(self, name: str, length: int, owner: object) -> Any:
        """See `ExecutionContext.device_array`; a NumPy array speaks DLPack, too."""
        return self._resident[name][:length]

    def _join(self, flags: int, job: _Job) -> None:
        """Put documents into the place of the pieces that have been encoded."""
        encoded, n_pieces = job.results, len(job.starts) - 1
        tokens, reasons = encoded["document_tokens"], self.reasons(n_pieces).astype(np.uint32)
        words = np.array(job.starts, np.uint32), self.piece_places()[:n_pieces].copy(), reasons
        joined = self._device.join(EncodedPieces(encoded["ids"], encoded["token_starts"], tokens, *words))
        self._n_tokens = n_tokens = len(joined.ids)
        self._host["document_tokens"][: n_pieces + 1] = joined.piece_tokens
        if flags & FLAG_IDS:
            self._host["ids"][:n_tokens] = joined.ids
        if flags & FLAG_TOKEN_STARTS:
            self._host["token_starts"][:n_tokens] = joined.token_starts
        self._reports = joined.reports

    def _finish(self, job: _Job) -> None:
        position, starts, flags, results = 0, job.starts, job.flags, job.results
        for document, (start, end) in enumerate(pairwise(starts)):
            results["document_tokens"][document] = position
            answer = job.encode(job.text[start:end])
            self._reasons[document] = answer if isinstance(answer, int) else 0
            pairs = np.array([] if isinstance(answer, int) else answer, dtype=np.uint32).reshape(-1, 2)
            if header_flags(flags) & FLAG_IDS:
                results["ids"][position : position + len(pairs)] = pairs[:, 0]
            if flags & FLAG_TOKEN_STARTS:
                results["token_starts"][position : position + len(pairs)] = pairs[:, 1] + start
            position += len(pairs)
        self._any_flagged = bool(self._reasons[: len(starts) - 1].any())
        results["document_tokens"][len(starts) - 1] = self._n_tokens = position
        if flags & FLAG_DECIMALS:
            tokens = results["document_tokens"][: len(starts)]
            write_decimals(results["ids"][:position], tokens, self.decimals, self.document_decimals)
