"""Bytes to ids on a device: the public interface of the GPU core.

    encoder = load(tokenizer_json)
    encoding = encoder.encode([b"some text", b"more"])
    encoding.ids(0)         -> uint32 array in pinned memory, not copied
    encoding.needs_cpu      -> {document: reason}

One thread at a time uses an encoder. Results are read when and where the caller likes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gpu_core.bridge_cut import cuts_of
from gpu_core.contexts import set_up
from gpu_core.encoding import Encoding, Lease, PackedEncoding, PartResult, ResidentEncoding, Times
from gpu_core.errors import NoFreeContext
from gpu_core.execution import Device, ExecutionContext, OutOfDeviceMemory
from gpu_core.filling import Lengths, fill, lengths_of, packed_starts
from gpu_core.join_layout import fits
from gpu_core.ladder import Ladder, Part, Plan
from gpu_core.layout import (
    FLAG_DECIMALS,
    FLAG_IDS,
    FLAG_NORMAL_FORM,
    FLAG_TOKEN_STARTS,
    REASON_NOT_NORMAL,
    REASON_TOO_LONG,
    REASONS,
)
from gpu_core.literals import device_literals
from gpu_core.long_runs import LongRuns, Pieces, long_runs_of
from gpu_core.normal_form import Normalize, Rewriter
from gpu_core.options import GpuOptions
from gpu_core.piecewise import PieceBatch, has_long_run, join_on_host
from gpu_core.replay import Replay, Replays
from gpu_core.safe_cut import Cuts, SafeCuts
from gpu_core.spec import TokenizerSpec, read_spec
from gpu_core.tables import load_tables

NO_CUT = "a document longer than the largest size class without a place to cut it"


def load(data: bytes, options: GpuOptions | None = None, normalize: Normalize | None = None) -> Encoder:
    """An encoder for the bytes of a tokenizer.json, on the GPU. `normalize`: see `Encoder`.

    Raises `TokenizerFileError`, `UnsupportedTokenizer` when the device cannot serve the tokenizer exactly, and
    `DeviceUnavailable` when there is no usable GPU.
    """
    options = options or GpuOptions()
    spec = read_spec(data)
    tables = load_tables(data, spec, Path(options.cache_dir) if options.cache_dir else None)
    # CuPy takes a second to import, and whoever has no GPU needs none of it.
    from gpu_core.device import CudaDevice

    return Encoder(
        spec,
        CudaDevice(tables, options),
        options,
        normalize,
        cuts_of(spec, tables),
        long_runs_of(spec, tables),
    )


class Encoder:
    """A ladder of execution contexts on one device, for one tokenizer."""

    def __init__(
        self,
        spec: TokenizerSpec,
        device: Device,
        options: GpuOptions,
        normalize: Normalize | None = None,
        cuts: Cuts | None = None,
        long_runs: LongRuns | None = None,
    ) -> None:
        """Set up every size class, largest first; without memory for all of them, those that fit, and a warning.

        Documents that may not be in normal form, and that a second replay on the device leaves (`normal_device`), are
        rewritten, see `gpu_core.normal_form`; `normalize`, the normalizer of the reference, is for those with
        characters on which this Python and the reference may differ.
        `cuts`: see `bridge_cut.cuts_of`; by default those of a byte-level tokenizer. With `long_runs`, documents with a
        pre-token that is too long are answered through pieces.
        """
        self.spec, self.device, self.options = spec, device, options
        self._rewriter = Rewriter(spec, normalize) if spec.normalizers == ("NFC",) else None
        self.cuts = cuts or SafeCuts(spec.pattern_family, device_literals(spec), bool(spec.normalizers))
        self._long_runs = long_runs
        self._replays = Replays(options.wait)
        contexts = set_up(options, lambda size, _number: device.context(size))
        self.ladder = Ladder(tuple(contexts))
        self._free = [contexts[size] for size in self.ladder.classes]

    def encode(
        self, documents: Sequence[bytes | memoryview], *, count_only: bool = False, token_starts: bool = False
    ) -> Encoding:
        """Ids of documents of UTF-8, without special tokens around them.

        `count_only`: no ids. `token_starts`: the byte position of each token, too. Raises `NoFreeContext` when held
        results occupy every context that fits, and `DeviceFault`.
        """
        flags = self._flags(count_only, token_starts)
        encoding = None
        if self._long_runs and len(documents) == 1 and has_long_run(documents[0]):
            # The device would only say so.
            encoding = self._encode_long(self._long_runs, documents[0], flags)
        encoding = self._encode(documents, flags) if encoding is None else encoding
        if encoding.needs_cpu and self._long_runs:
            self._encode_pieces(self._long_runs, encoding, documents, flags)
        # Positions would be those of the rewritten text.
        if encoding.needs_cpu and self._rewriter and not token_starts:
            self._encode_rewritten(self._rewriter, encoding, documents, flags)
        return encoding

    def encode_packed(
        self, text: bytes | memoryview, document_starts: ArrayLike, *, count_only: bool = False
    ) -> PackedEncoding:
        """Ids of documents that lie one behind the other in `text`: arrays in, arrays out, in one context.

        `document_starts`: where each begins, and the end of the last. Raises `ValueError` for more than the largest
        size class, and as `encode` does. No documents are tried again, but on the device in normal form.
        """
        starts = packed_starts(document_starts, len(text))
        n_bytes, n_documents = len(text), len(starts) - 1
        if self.ladder.fitting(n_bytes, n_documents) == len(self._free):
            raise ValueError("a packed result is that of one replay; this is more than the largest size class")
        times, begin = Times(), time.perf_counter_ns()
        lease = self.lease(n_bytes, n_documents)
        lease.context.text[:n_bytes] = text
        lease.context.document_starts[: n_documents + 1] = starts
        times.fill_ns = time.perf_counter_ns() - begin
        encoding = self._run(Replay(lease, n_bytes, n_documents, self._flags(count_only, False)), times)
        part = encoding.parts[0]
        return PackedEncoding(*part.packed(), encoding.needs_cpu, times, part)

    def encode_resident(
        self, documents: Sequence[bytes | memoryview], *, token_starts: bool = False
    ) -> ResidentEncoding:
        """The same with results that stay on the device. Raises `ValueError` for more than the largest size class."""
        lengths = lengths_of(documents)
        n_bytes, n_documents = int(np.sum(lengths, dtype=np.int64)), len(documents)
        if self.ladder.fitting(n_bytes, n_documents) == len(self._free):
            raise ValueError("a resident result is that of one replay; this is more than the largest size class")
        times = Times()
        flags = self._flags(False, token_starts)
        replay = Replay(self.lease(n_bytes, n_documents), n_bytes, n_documents, flags, resident=True)
        context = replay.lease.context
        _fill(context, documents, lengths, times)
        self._replays.launch(replay, times)
        needs_cpu = {document: REASONS[reason] for document, reason in self._replays.finish(replay, times).items()}
        n_tokens = context.n_tokens()
        return ResidentEncoding(
            context.device_array("ids", n_tokens, replay.lease),
            context.device_array("document_tokens", n_documents + 1, replay.lease),
            context.device_array("token_starts", n_tokens, replay.lease) if token_starts else None,
            n_tokens,
            needs_cpu,
            times,
            replay.lease,
        )

    def lease(self, n_bytes: int, n_documents: int) -> Lease:
        """A free context of the smallest class that holds so much; its `text` can be filled without another copy."""
        for free in self._free[self.ladder.fitting(n_bytes, n_documents) :]:
            if free:
                return Lease(free)
        raise NoFreeContext("all execution contexts of a fitting size are in use; release results, or ask for more")

    def replay(
        self,
        lease: Lease,
        n_bytes: int,
        n_documents: int,
        *,
        count_only: bool = False,
        token_starts: bool = False,
        decimals: bool = False,
    ) -> Encoding:
        """Encode what the caller wrote into the leased context's `text` and `document_starts`.

        `decimals`: ids also as decimal numbers, see `Encoding.decimals`; there are ids then, too.
        """
        flags = self._flags(count_only, token_starts) | (FLAG_DECIMALS if decimals else 0)
        return self._run(Replay(lease, n_bytes, n_documents, flags), Times())

    def plan(self, documents: Sequence[bytes | memoryview]) -> Plan:
        """How a batch beyond the largest class is taken apart."""
        return self.ladder.plan(
            [len(document) for document in documents],
            lambda document, low, high: self.cuts.last_before(documents[document], low, high),
        )

    def _flags(self, count_only: bool, token_starts: bool) -> int:
        if token_starts and not self.options.token_starts:
            raise ValueError("token starts need the option token_starts, which makes room for them")
        return (0 if count_only else FLAG_IDS) | (FLAG_TOKEN_STARTS if token_starts else 0)

    def _encode(self, documents: Sequence[bytes | memoryview], flags: int) -> Encoding:
        lengths = lengths_of(documents)
        n_bytes = sum(lengths) if isinstance(lengths, list) else int(lengths.sum(dtype=np.int64))
        if self.ladder.fitting(n_bytes, len(documents)) == len(self._free):
            return self._encode_parts(documents, flags)
        times = Times()
        replay = Replay(self.lease(n_bytes, len(documents)), n_bytes, len(documents), flags)
        _fill(replay.lease.context, documents, lengths, times)
        return self._run(replay, times)

    def _encode_rewritten(
        self, rewriter: Rewriter, encoding: Encoding, documents: Sequence[bytes | memoryview], flags: int
    ) -> None:
        """Answer documents that may not be in normal form through others with the same ids, which are."""
        rewritten: dict[int, bytes] = {}
        for document, reason in encoding.needs_cpu.items():
            text = rewriter.rewrite(bytes(documents[document])) if reason == REASONS[REASON_NOT_NORMAL] else None
            if text is not None:
                rewritten[document] = text
        if not rewritten:
            return
        answer = self._encode_again(encoding, list(rewritten.values()), flags | FLAG_NORMAL_FORM)
        if answer is not None:
            encoding.adopt(list(rewritten), answer)

    def _encode_long(self, long_runs: LongRuns, document: bytes | memoryview, flags: int) -> Encoding | None:
        """The result of one document through pieces; None if it has no long run or they do not fit together."""
        shift, text = 0, bytes(document)
        for _attempt in range(2):
            pieces = long_runs.cut(text, shift)
            answer = self._encode_joined(PieceBatch([text], [pieces]), flags) if pieces else None
            if answer is None:
                return None
            encoding, shifts = answer
            if not shifts:
                return encoding
            encoding.release()
            shift = shifts[0]
            if not shift:
                return None
        return None

    def _encode_pieces(
        self, long_runs: LongRuns, encoding: Encoding, documents: Sequence[bytes | memoryview], flags: int
    ) -> None:
        """Answer documents with a pre-token that is too long through pieces, as far as these fit together."""
        shifts = {d: 0 for d, reason in encoding.needs_cpu.items() if reason in {REASONS[REASON_TOO_LONG], NO_CUT}}
        while shifts:
            texts = {document: bytes(documents[document]) for document in shifts}
            cut = {d: pieces for d, text in texts.items() if (pieces := long_runs.cut(text, shifts[d]))}
            if not cut:
                return
            batch = PieceBatch([texts[document] for document in cut], list(cut.values()))
            answer = self._encode_joined(batch, flags)
            if answer is None:
                missed = self._join_on_host(long_runs, encoding, texts, cut)
            else:
                missed = answer[1]
                encoding.adopt(list(cut), answer[0])
            again = {document: missed.get(place, 0) for place, document in enumerate(cut)}
            shifts = {d: shift for d, shift in again.items() if shift and not shifts[d]}

    def _encode_joined(self, batch: PieceBatch, flags: int) -> tuple[Encoding, dict[int, int]] | None:
        """One replay over pieces, and what `PieceBatch.failures` says of it; None if no context can take it."""
        for size, free in zip(self.ladder.classes, self._free, strict=True):
            if free and fits(batch.n_bytes, batch.n_pieces, size.capacity, size.max_documents):
                replay = Replay(Lease(free), batch.n_bytes, batch.n_pieces, flags, kind="pieces")
                break
        else:
            return None
        times, context = Times(), replay.lease.context
        begin = time.perf_counter_ns()
        try:
            batch.fill(context)
        except OutOfDeviceMemory:
            return None
        times.fill_ns = time.perf_counter_ns() - begin
        self._replays.launch(replay, times)
        part = PartResult(replay.lease, replay.n_documents, replay.flags)
        times.add_wait(self._replays.wait(replay))
        missed = batch.failures(context.reports(batch.n_pieces)) if context.any_flagged() else {}
        part.take_documents(batch.firsts, batch.document_starts)
        if not flags:
            part.detach()
        needs_cpu = dict.fromkeys(missed, REASONS[REASON_TOO_LONG])
        return Encoding([part], None, len(batch.firsts) - 1, needs_cpu, times), missed

    def _join_on_host(
        self, long_runs: LongRuns, encoding: Encoding, texts: dict[int, bytes], cut: dict[int, Pieces]
    ) -> dict[int, int]:
        """The same for pieces that no context can take at once: shifts of documents by their place in `cut`."""
        rows = [text for document, pieces in cut.items() for text in pieces.texts(texts[document])]
        answer = self._encode_again(encoding, rows, FLAG_IDS)
        return {} if answer is None else join_on_host(long_runs, encoding, answer, cut)

    def _encode_again(self, encoding: Encoding, texts: list[bytes], flags: int) -> Encoding | None:
        """Encode other texts for documents of a result; None when other results hold every context."""
        try:
            return self._encode(texts, flags)
        except NoFreeContext:
            # This call may hold what it needs now.
            encoding.detach()
        try:
            return self._encode(texts, flags)
        except NoFreeContext:
            return None

    def _run(self, replay: Replay, times: Times) -> Encoding:
        self._replays.launch(replay, times)
        # While the device works: what is not done now adds to the time of the call.
        part = PartResult(replay.lease, replay.n_documents, replay.flags)
        needs_cpu: dict[int, str] = {}
        encoding = Encoding([part], None, replay.n_documents, needs_cpu, times)
        for document, reason in self._replays.finish(replay, times).items():
            needs_cpu[document] = REASONS[reason]
        if not replay.flags & ~FLAG_NORMAL_FORM:
            part.detach()
        return encoding

    def _encode_parts(self, documents: Sequence[bytes | memoryview], flags: int) -> Encoding:
        """Several replays: while the device works on one, the host fills the next."""
        plan = self.plan(documents)
        run = _Parts(self, plan, documents)
        for number, part in enumerate(plan.parts):
            run.start(number, part, flags)
        return run.finish()


class _Parts:
    """The replays of one call that is larger than a size class."""

    def __init__(self, encoder: Encoder, plan: Plan, documents: Sequence[bytes | memoryview]) -> None:
        self._encoder, self._plan = encoder, plan
        self._documents = [memoryview(document) for document in documents]
        self._times = Times()
        self._on_the_way: deque[Replay] = deque()
        self._results: list[PartResult] = []
        self._n_detached = 0
        self._needs_cpu = dict.fromkeys(plan.uncut, NO_CUT)
        self._pieces: list[list[tuple[int, int, int]]] = [[] for _ in documents]

    def start(self, number: int, part: Part, flags: int) -> None:
        for place, piece in enumerate(part.pieces):
            self._pieces[piece.document].append((number, place, piece.start))
        texts = [self._documents[piece.document][piece.start : piece.end] for piece in part.pieces]
        replay = Replay(self._lease(part), part.n_bytes, len(texts), flags)
        _fill(replay.lease.context, texts, lengths_of(texts), self._times)
        self._encoder._replays.launch(replay, self._times)
        self._on_the_way.append(replay)

    def finish(self) -> Encoding:
        while self._on_the_way:
            self._finish_oldest()
        return Encoding(self._results, self._pieces, len(self._documents), self._needs_cpu, self._times)

    def _lease(self, part: Part) -> Lease:
        """A free context; if there is none, results of this call are copied to get one back."""
        while True:
            try:
                return self._encoder.lease(part.n_bytes, len(part.pieces))
            except NoFreeContext:
                if self._n_detached == len(self._results):
                    if not self._on_the_way:
                        raise
                    self._finish_oldest()
                self._results[self._n_detached].detach()
                self._n_detached += 1

    def _finish_oldest(self) -> None:
        replay = self._on_the_way.popleft()
        part = self._plan.parts[len(self._results)]
        for place, reason in self._encoder._replays.finish(replay, self._times).items():
            self._needs_cpu[part.pieces[place].document] = REASONS[reason]
        self._results.append(PartResult(replay.lease, replay.n_documents, replay.flags))
        if not replay.flags & ~FLAG_NORMAL_FORM:
            self._results[-1].detach()


def _fill(context: ExecutionContext, documents: Sequence[bytes | memoryview], lengths: Lengths, times: Times) -> None:
    begin = time.perf_counter_ns()
    fill(context, documents, lengths)
    times.fill_ns += time.perf_counter_ns() - begin
