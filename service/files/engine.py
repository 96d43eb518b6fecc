"""One tokenizer on a dispatcher of its own: documents in, packed ids out, in order, on whichever route is faster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.dispatcher import Dispatcher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.short_way import ShortCall
from dispatcher.gpus import Gpus
from dispatcher.group_call import GroupCall
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.policy import ADAPTIVE, GPU
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import load_tokenizer
from gpu_core.errors import CallerError, SidetokError
from service.files.errors import FilesError
from service.files.options import FilesOptions
from service.files.records import Record
from service.model_files import ModelFiles, read_embedded_files, read_model_files

GROUP_CHARS = 128 << 10
GROUP_RECORDS = 1024
WINDOW_CHARS = 8 << 20
"""Text that is on its way at once, next to one document of any length."""
SWEEP_S = 0.05
LABEL = "files"

Place = tuple[int, int]
"""Index of a source, and the number of its last record that is done."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that has no ids, and why."""

    source: int
    record: int
    reason: str


@dataclass(slots=True)
class Packed:
    """Ids of consecutive documents."""

    done: Place
    n_read: int
    """Bytes of the source at `done` that were read when its last record was taken."""
    ids: NDArray[Any]
    """(n,) little-endian uint16 or uint32: the documents one after the other."""
    lengths: NDArray[np.uint64]
    """(n_documents,) ids of each."""
    n_chars: int
    n_gpu: int
    """Documents that the GPU route answered."""
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    """Records that are encoded together."""

    done: Place = (0, 0)
    n_read: int = 0
    texts: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    n_chars: int = 0
    n_records: int = 0
    answer: Future[_Answer] = field(default_factory=Future)
    call: GroupCall | ShortCall | None = None

    @property
    def is_full(self) -> bool:
        return self.n_chars >= GROUP_CHARS or self.n_records >= GROUP_RECORDS


_Answer = tuple[NDArray[Any], NDArray[np.uint64], bool] | SidetokError
"""Ids, lengths, and whether the GPU route gave them; or what was wrong."""


class Engine:
    """Loads the tokenizer and starts the dispatcher; `close` stops it."""

    def __init__(
        self, options: FilesOptions, work: DispatcherOptions, gpu: GpuRouteOptions, command: tuple[str, ...] = ()
    ) -> None:
        """`command` replaces the program of GPU engines. Raises `FilesError`, also for ids that do not fit."""
        try:
            files = read_model_files(Path(options.tokenizer)) if options.tokenizer else read_embedded_files()
            self.tokenizer = load_tokenizer(
                files.tokenizer_json,
                engine=work.cpu_engine,
                cache_dir=Path(work.cache_dir) if work.cache_dir else None,
                max_reference_bytes=work.max_reference_bytes,
            )
        except SidetokError as error:
            raise FilesError(f"--tokenizer: {error}") from None
        self.eos_id = self._eos_id(options.eos, files)
        self.id_type = self._id_type(options.id_type)
        self._options = EncodeOptions(add_special_tokens=options.special_tokens)
        clocks = ThreadClocks()
        self._gpus: Gpus | None = None
        if gpu.gpu_numbers() != ():
            cache_dir = Path(work.cache_dir) if work.cache_dir else None
            self._gpus = Gpus(gpu, clocks, cache_dir, command, calibrate=not command and work.policy == ADAPTIVE)
        self._dispatcher = Dispatcher(work, _nothing, None, self._gpus, clocks)
        if self._gpus is not None:
            self._gpus.start()
            self._gpus.add(self.tokenizer, files.tokenizer_json)

    def close(self) -> None:
        """Stop the threads."""
        if self._gpus is not None:
            self._gpus.close()
        self._dispatcher.close()

    def pack(self, records: Iterable[tuple[int, Record, Callable[[], int]]]) -> Iterator[Packed]:
        """The ids of records, in order; each comes with its source, and with what tells the bytes read of that.

        How records are put together follows from the first one alone, so a run that goes on at a place where another
        one stopped makes the same groups.
        """
        waiting: deque[_Group] = deque()
        n_chars = 0
        try:
            for group in _grouped(records):
                while waiting and n_chars + group.n_chars > WINDOW_CHARS:
                    first = waiting.popleft()
                    yield self._packed(first)
                    n_chars -= first.n_chars
                group.call = self._submit(group.texts, group.answer)
                waiting.append(group)
                n_chars += group.n_chars
            while waiting:
                yield self._packed(waiting.popleft())
        finally:
            for group in waiting:
                if group.call is not None:
                    group.call.cancel()

    def _submit(self, texts: list[str], answer: Future[_Answer]) -> GroupCall | ShortCall:
        def tell(result: EncodedGroup | None, error: SidetokError | None) -> None:
            # On a thread of the dispatcher: packing runs beside reading, and memory of a GPU is given back at once.
            try:
                answer.set_result(self._pack(result) if result is not None else error or SidetokError("no result"))
            except BaseException as failure:
                answer.set_exception(failure)

        return self._dispatcher.encode_group(self.tokenizer, texts, tell, self._options, model=LABEL)

    def _pack(self, result: EncodedGroup) -> _Answer:
        eos = b"" if self.eos_id is None else np.uint32(self.eos_id).astype("<u4").tobytes()
        parts: list[Any] = []
        for ids in result.ids:
            parts += (ids, eos)
        packed = np.frombuffer(b"".join(parts), "<u4")
        lengths = np.array(result.n_tokens, np.uint64) + np.uint64(len(eos) // 4)
        if self.id_type == "uint16" and packed.size and packed.max() > 0xFFFF:
            raise FilesError(f"an id of {packed.max()} does not fit into uint16: use --id-type uint32")
        return packed.astype("<u2" if self.id_type == "uint16" else "<u4", copy=False), lengths, result.route == GPU

    def _packed(self, group: _Group) -> Packed:
        answer = self._wait(group.answer)
        if isinstance(answer, SidetokError):
            answer = self._one_by_one(group, answer)
        ids, lengths, on_gpu = answer
        n_gpu = len(lengths) if on_gpu else 0
        return Packed(group.done, group.n_read, ids, lengths, group.n_chars, n_gpu, sorted(group.failures, key=_order))

    def _one_by_one(self, group: _Group, error: SidetokError) -> tuple[NDArray[Any], NDArray[np.uint64], bool]:
        """The answer without the documents that are at fault."""
        if not isinstance(error, CallerError):
            raise FilesError(f"the engine failed: {error}")
        answers: list[Any] = []
        for text, (source, record) in zip(group.texts, group.places, strict=True):
            single: Future[_Answer] = Future()
            self._submit([text], single)
            answer = self._wait(single)
            if not isinstance(answer, SidetokError):
                answers.append(answer)
            elif isinstance(answer, CallerError):
                group.failures.append(Failure(source, record, str(answer)))
            else:
                raise FilesError(f"the engine failed: {answer}")
        ids = [ids for ids, _, _ in answers] or [np.empty(0, f"<u{2 if self.id_type == 'uint16' else 4}")]
        lengths = [lengths for _, lengths, _ in answers] or [np.empty(0, np.uint64)]
        return np.concatenate(ids), np.concatenate(lengths), False

    def _wait(self, answer: Future[_Answer]) -> _Answer:
        while wait([answer], SWEEP_S).not_done:
            # What an event loop does for a service: wakes a worker when the first job in the queue waits long.
            self._dispatcher.sweep()
        return answer.result()

    def _eos_id(self, eos: str, files: ModelFiles) -> int | None:
        if not eos:
            return None
        token = files.special_tokens.get("eos_token") if eos == "auto" else eos
        if token is None:
            raise FilesError("--eos auto: the model's configuration names no eos_token; give the token itself")
        number = self.tokenizer.token_to_id(token)
        if number is None:
            raise FilesError(f"--eos: the tokenizer has no token {token!r}")
        return number

    def _id_type(self, wanted: str) -> str:
        fits = self.tokenizer.max_id <= 0xFFFF
        if wanted == "uint16" and not fits:
            raise FilesError(f"--id-type uint16: ids of this tokenizer go up to {self.tokenizer.max_id}")
        return wanted if wanted != "auto" else "uint16" if fits else "uint32"


def _grouped(records: Iterable[tuple[int, Record, Callable[[], int]]]) -> Iterator[_Group]:
    group = _Group()
    for source, (number, text, reason), position in records:
        group.done = source, number
        group.n_records += 1
        if text is None:
            group.failures.append(Failure(source, number, reason))
        else:
            group.texts.append(text)
            group.places.append((source, number))
            group.n_chars += len(text)
        group.n_read = position()
        if group.is_full:
            yield group
            group = _Group()
    if group.n_records:
        yield group


def _order(failure: Failure) -> Place:
    return failure.source, failure.record


def _nothing(callback: Callable[[], None]) -> None:
    """Calls without an event loop wake none."""
