"""What encoders and engines need of a GPU: devices and their execution contexts. The real ones are in `device.py`."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_core.ladder import SizeClass
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables


class OutOfDeviceMemory(Exception):
    """There is no memory for another execution context."""


class DirectLaunch(NamedTuple):
    """What starts a replay over the text of one document from C; all but the last are addresses in this process.

    The caller adds one to both counts and fills the header (`layout.HEADER`) with the first one as its epoch, then
    calls `launch(graph, stream)`, which gives 0 or an error of CUDA; the second count's last bit says which graph. The
    completion (`layout.COMPLETION`) has that epoch once results are visible.
    """

    launch: int
    graphs: tuple[int, int]
    stream: int
    header: int
    completion: int
    document_starts: int
    counts: int
    """Two 64-bit numbers."""
    over_bytes: int
    """For more text than this."""


class ExecutionContext(Protocol):
    """Memory of one size class and what was captured over it. One replay at a time; results stay until the next."""

    size: SizeClass
    n_graphs: int
    """Graphs that were captured over it."""
    text: memoryview
    """Pinned memory for the batch's text, writable."""
    document_starts: NDArray[np.uint32]
    """Pinned, writable: where each document begins, and behind the last one the length of the text."""
    ids: NDArray[np.uint32]
    """Pinned: the ids of the last replay unless they stayed on the device."""
    token_starts: NDArray[np.uint32]
    """Pinned: byte position of each token, if the context has room for them."""
    document_tokens: NDArray[np.uint32]
    """Pinned: where each document's ids begin, and behind the last one the number of ids."""

    decimals: memoryview
    """Pinned: the ids of the last replay as decimal numbers, a comma behind each, if it was launched with
    `FLAG_DECIMALS`; as far as there is room."""
    document_decimals: NDArray[np.uint32]
    """Pinned: where each document's decimals begin, and behind the last one the length of all, room or not."""
    in_normal_form: bool
    """Whether the replay that was launched last is over text that the device brings into normal form: a second one, or
    one over text whose like has often not been in normal form."""

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """Start a replay over the text and document starts. `flags` are those of the header, and `FLAG_DECIMALS`.

        With that flag there are ids on the host, too, whatever else is asked for.
        """

    def direct(self) -> DirectLaunch | None:
        """How to launch without this object, by the thread that uses it; None where that cannot be."""

    def launched_directly(self, n_bytes: int) -> None:
        """The last replay was launched that way, over one document, for ids; before anything but `poll` and results."""

    @property
    def in_doubt(self) -> bool:
        """Whether text of some size is brought into normal form at once, so that no replay may be launched directly."""

    def launch_normalized(self) -> bool:
        """Start a second replay over the batch of the last one, in normal form; False where that is of no use.

        The last one is complete, has flagged documents as not in normal form, and was asked for nothing but ids, counts
        and decimals; its text still lies there. All documents are answered anew, and those that are left flagged anew.
        Behind a second one that had no room for the text in normal form, the first one is repeated, and that is all.
        The first time, memory is taken for it: without that, and for tokenizers whose text the device does not
        normalize (`normal_device`), False, too.
        """

    def piece_places(self) -> NDArray[np.uint32]:
        """Pinned, writable: where each piece begins in the text of all documents, if a replay is over pieces.

        Raises `OutOfDeviceMemory`: the first time, memory is taken for it.
        """

    def launch_pieces(self, n_bytes: int, n_pieces: int, flags: int) -> None:
        """Start a replay over pieces that overlap, in the place of documents; they must fit (`join_layout.fits`).

        Results are those of the documents: ids and token starts in the text of all documents, and in `document_tokens`
        the number of the first token that each piece keeps, and of all. `any_flagged` says whether there are reports.
        """

    def reports(self, n_pieces: int) -> NDArray[np.uint32]:
        """Per piece of the last replay over pieces why it is not joined to the one before, see `join_layout`; or 0."""

    def poll(self, n_times: int) -> bool:
        """Look up to `n_times`; whether the replay is complete and its results are visible."""

    def alive(self) -> None:
        """Raise `DeviceFault` when the device has failed."""

    def block(self) -> None:
        """Wait in the driver until the replay is complete. Needs the wait mode `block`."""

    def any_flagged(self) -> bool:
        """Whether a document of the last replay needs the CPU."""

    def n_tokens(self) -> int:
        """Number of ids of the last replay."""

    def reasons(self, n_documents: int) -> NDArray[np.uint8]:
        """Per document of the last replay why it needs the CPU, a key of `layout.REASONS`; 0 = it does not.

        In pinned memory, and only of a replay of which `any_flagged` says that there are some.
        """

    def device_array(self, name: str, length: int, owner: object) -> Any:
        """`ids`, `token_starts` or `document_tokens` of a resident replay, for consumers on the same device.

        It speaks `__cuda_array_interface__` and DLPack, and keeps the owner alive.
        """


class Device(Protocol):
    """A device with one tokenizer's tables and kernels."""

    name: str

    def context(self, size: SizeClass, pinned: memoryview | None = None) -> ExecutionContext:
        """A new execution context, captured and replayed once. Raises `OutOfDeviceMemory`.

        `pinned` is its block of pinned memory (`arena.arrange`), part of what was registered; None = it takes its own.
        """


class Gpu(Protocol):
    """One GPU of this process, shared by the devices of several tokenizers."""

    name: str
    n_gpus: int
    """How many GPUs the process sees."""

    def attach(self) -> None:
        """Let the calling thread use it. The thread that makes the object is attached already."""

    def memory_bytes(self) -> tuple[int, int]:
        """Device memory that is free, and all of it."""

    def register(self, memory: memoryview) -> None:
        """Make writable, page-aligned memory of the caller pinned. Raises `OutOfDeviceMemory`."""

    def unregister(self, memory: memoryview) -> None:
        """Undo `register`, once no context uses the memory any more and before it is unmapped."""

    def device(self, key: str, tables: Tables, options: GpuOptions) -> Device:
        """The tables and kernels of one tokenizer, `key` being the digest of its file. Raises `DeviceUnavailable`."""
