"""Ids to texts on a device: many sequences in one launch.

    decoder = load_decoder(tokenizer_json, encoder.device)
    decoding = decoder.decode([[9707, 11, 1879], [0]], skip_special_tokens=True)
    decoding.text(0)        -> "Hello, world", as the reference decodes it
    decoding.bytes(0)       -> the bytes of the entries, before what is no UTF-8 is replaced

One thread at a time uses a decoder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_core.decode_context import DecodeContext, DecodeDevice
from gpu_core.decode_layout import FLAG_SKIP_SPECIAL, arrange_decoding
from gpu_core.decode_tables import DecodeTables, build_decode_tables, text_of
from gpu_core.errors import NoFreeContext
from gpu_core.spec import read_spec
from gpu_core.waiting import AdaptiveWait, SpinWait

Ids = NDArray[np.uint32]
Sequences = Sequence[Sequence[int] | NDArray[np.integer]]

BYTES_PER_ID = 8
"""Room for bytes; ordinary text has 3 to 5 for an id. Ids with more of them take several launches."""
MAX_OUTPUT = 1 << 31
"""Bytes that one launch may come to, written or not."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What a decoder sets up."""

    capacity_ids: int = 1 << 20
    """Ids of one launch at most."""
    max_sequences: int = 1 << 17
    n_contexts: int = 2
    """Results that can be held at a time."""
    wait: str = "adaptive"
    """See `GpuOptions.wait`."""


def load_decoder(data: bytes, device: DecodeDevice, options: DecodeOptions | None = None) -> Decoder:
    """A decoder for the bytes of a tokenizer.json on a device, that of an encoder for instance.

    Raises `TokenizerFileError`, and `UnsupportedTokenizer` when its texts cannot be decoded exactly.
    """
    return Decoder(build_decode_tables(data, read_spec(data)), device, options or DecodeOptions())


class Decoder:
    """Contexts of one tokenizer on one device."""

    def __init__(self, tables: DecodeTables, device: DecodeDevice, options: DecodeOptions) -> None:
        self.tables, self.options = tables, options
        # A count of bytes must not wrap around, however long the entries are.
        n_ids = max(1, min(options.capacity_ids, MAX_OUTPUT // max(1, tables.longest)))
        # A launch with one id must fit.
        arena = arrange_decoding(n_ids, max(BYTES_PER_ID * n_ids, tables.longest), max(2, options.max_sequences))
        self.capacity_ids = n_ids
        memories = device.decode_memories(tables, arena, options.n_contexts)
        self._free = [DecodeContext(memory, arena) for memory in memories]
        for context in self._free:
            # Once on nothing, so that nothing is left to load.
            context.launch(0, 0, 0)
            context.block()
        self._adaptive, self._spin = AdaptiveWait(), SpinWait()

    def decode(self, sequences: Sequences, *, skip_special_tokens: bool = False) -> Decoding:
        """Bytes and texts of many sequences of ids. An id without entry is left out.

        Raises `NoFreeContext` when held results occupy every context, `OverflowError` for numbers that are no ids,
        and `DeviceFault`.
        """
        if not self._free:
            raise NoFreeContext("all contexts are in use; release results, or ask for more")
        rows = [_ids_of(sequence) for sequence in sequences]
        starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        flags = FLAG_SKIP_SPECIAL if skip_special_tokens else 0
        context = self._free.pop()
        try:
            if len(rows) <= context.arena.n_sequences and starts[-1] <= self.capacity_ids:
                n_bytes = self._launch(context, rows, starts, flags)
                if n_bytes <= context.arena.n_bytes:
                    return Decoding(self, context, context.bytes, context.sequence_bytes[: len(rows) + 1], rows, flags)
            ids = np.concatenate(rows) if rows else np.zeros(0, np.uint32)
            data, sequence_bytes = _Parts(self, context, flags).decode(ids, starts)
        except BaseException:
            self._free.append(context)
            raise
        self._free.append(context)
        return Decoding(self, None, data, sequence_bytes, rows, flags)

    def _launch(self, context: DecodeContext, rows: list[Ids], starts: NDArray[np.int64], flags: int) -> int:
        """One launch over these ids, whose first sequence starts at 0; the bytes that they have."""
        n_ids = int(starts[-1])
        if rows:
            np.concatenate(rows, out=context.ids[:n_ids])
        context.sequence_starts[: len(starts)] = starts
        launched_ns = time.perf_counter_ns()
        context.launch(n_ids, len(starts) - 1, flags)
        if self.options.wait == "block":
            context.block()
        else:
            waiter = self._adaptive if self.options.wait == "adaptive" else self._spin
            waiter.wait(context.poll, context.alive, 4 * n_ids, launched_ns)
        return context.n_bytes()


class _Parts:
    """The launches of one call that is larger than a context. Bytes do not care where ids are cut."""

    def __init__(self, decoder: Decoder, context: DecodeContext, flags: int) -> None:
        self._decoder, self._context, self._flags = decoder, context, flags
        self._data: list[NDArray[np.uint8]] = []
        self._sequence_bytes: list[NDArray[np.int64]] = []
        self._n_bytes = 0

    def decode(self, ids: Ids, starts: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All bytes, and where those of each sequence begin and the last one ends."""
        n_sequences, first, begin = len(starts) - 1, 0, 0
        while begin < len(ids) or first < n_sequences:
            end = min(begin + self._decoder.capacity_ids, len(ids))
            last = n_sequences if end == len(ids) else int(np.searchsorted(starts, end))
            # One place is kept for the rest of a sequence that began before.
            if last - first >= self._context.arena.n_sequences:
                last = first + self._context.arena.n_sequences - 1
                end = int(starts[last])
            self._add(ids[begin:end], starts[first:last] - begin)
            begin, first = end, last
        ends = [np.array([self._n_bytes])]
        return np.concatenate([*self._data, np.zeros(0, np.uint8)]), np.concatenate([*self._sequence_bytes, *ends])

    def _add(self, ids: Ids, starts: NDArray[np.int64]) -> None:
        """Ids of one launch, with the sequences that start among them; those whose bytes do not fit are halved."""
        borders = np.concatenate([[0], starts, [len(ids)]])
        n_bytes = self._decoder._launch(self._context, [ids], borders, self._flags)
        if n_bytes > self._context.arena.n_bytes:
            half = len(ids) // 2
            self._add(ids[:half], starts[starts < half])
            self._add(ids[half:], starts[starts >= half] - half)
            return
        places = self._context.sequence_bytes[1 : len(starts) + 1].astype(np.int64)
        self._sequence_bytes.append(places + self._n_bytes)
        self._data.append(self._context.bytes[:n_bytes].copy())
        self._n_bytes += n_bytes


class Decoding:
    """The results of one call, by sequence. What it holds of a context is free after `release`, or with the object."""

    def __init__(
        self,
        decoder: Decoder,
        context: DecodeContext | None,
        data: NDArray[np.uint8],
        sequence_bytes: NDArray[np.integer],
        rows: list[Ids],
        flags: int,
    ) -> None:
        self._decoder, self._context = decoder, context
        self._data, self._borders = data, sequence_bytes.tolist()
        self._rows, self._flags = rows, flags

    def __len__(self) -> int:
        return len(self._rows)

    def n_bytes(self, sequence: int) -> int:
        """Length of `bytes`."""
        return len(self.bytes(sequence)) if self._decoder.tables.n_stripped else len(self._span(sequence))

    def bytes(self, sequence: int) -> bytes:
        """Bytes of the entries, one after the other; not always UTF-8."""
        data = self._span(sequence).tobytes()
        n_blanks = min(self._decoder.tables.n_stripped, len(data) - len(data.lstrip(b" ")))
        return data[n_blanks:]

    def text(self, sequence: int) -> str:
        """The text, as the reference decodes the ids."""
        tables, skips = self._decoder.tables, bool(self._flags & FLAG_SKIP_SPECIAL)
        return text_of(tables, self._span(sequence).tobytes(), self._rows[sequence], skips)

    def release(self) -> None:
        """Give the context back now; nothing can be read any more."""
        context, self._context = self._context, None
        if context is not None:
            self._data = self._data[:0]
            self._decoder._free.append(context)

    def __del__(self) -> None:
        self.release()

    def _span(self, sequence: int) -> NDArray[np.uint8]:
        return self._data[self._borders[sequence] : self._borders[sequence + 1]]


def _ids_of(sequence: Sequence[int] | NDArray[np.integer]) -> Ids:
    """Ids as the kernel reads them. Raises `OverflowError` for what is no 32-bit number."""
    if isinstance(sequence, np.ndarray) and sequence.dtype != np.uint32 and len(sequence):
        low, high = int(sequence.min()), int(sequence.max())
        if sequence.dtype.kind not in "iu" or low < 0 or high >= 1 << 32:
            raise OverflowError("ids are integers from 0 to 4294967295")
    return np.asarray(sequence, dtype=np.uint32)
