"""Engine processes without a GPU for tests: tokenizers, batches, and what the answers have to be."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from dispatcher.gpu.link import Completion, EngineLink, Slot
from dispatcher.gpu.messages import Fault, Hello, Loaded, Refused, Report
from dispatcher.gpu.process_link import ProcessLink
from dispatcher.gpu.table_builder import write_tables
from gpu_core.layout import FLAG_IDS
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables
from tests.data import tokenizer_json
from tests.dispatcher.host_engine import HostEngine, reference_pairs

LIMIT_S = 60.0
"""How long a test waits for what must happen; reaching it fails the test, so nothing depends on its value."""
OPTIONS = GpuOptions(size_classes_bytes=(4096, 65536))
ROUTE_OPTIONS: dict[str, Any] = {
    "gpus": "0",
    "gpu_classes_kib": "4,512",
    "gpu_contexts": 2,
    "gpu_restart_min_s": 0.01,
    # A host that has other things to do is no fault of an engine.
    "gpu_watchdog_s": LIMIT_S,
}
"""Of `GpuRouteOptions`, for engines in processes that stand in for GPUs."""
WORDS = ["one", " two", " three's", " 4567", "\n\n", " caf\u00e9", " \u4f60\u597d", "  x = f(y);"]


@dataclass(frozen=True)
class Model:
    """One tokenizer: its digest, its file, the reference."""

    key: str
    data: bytes
    pairs: Callable[[bytes], Sequence[tuple[int, int]] | int]

    def ids(self, document: bytes) -> list[int] | None:
        """What is exact; None when the document needs the CPU."""
        answer = self.pairs(document)
        return None if isinstance(answer, int) else [token for token, _start in answer]


@cache
def model(family: str = "byte_bpe") -> Model:
    """A tokenizer by its family."""
    data = tokenizer_json(family)
    return Model(read_spec(data).digest, data, reference_pairs(data.decode()))


@cache
def tables_fd(family: str) -> int:
    """A file of its tables, for the whole session."""
    data = tokenizer_json(family)
    fd = os.memfd_create("tables", os.MFD_CLOEXEC)
    write_tables(fd, build_tables(data, read_spec(data)))
    return fd


def engine_command(folder: Path, *families: str, **script: Any) -> list[str]:
    """The program of an engine that serves these tokenizers; `script` is that of `HostEngine`."""
    files = {}
    for family in families or ("byte_bpe",):
        path = folder / f"{family}.json"
        path.write_bytes(model(family).data)
        files[model(family).key] = str(path)
    return HostEngine(files, **script).command()


@contextmanager
def running_link(folder: Path, *families: str, options: GpuOptions = OPTIONS, **script: Any) -> Iterator[ProcessLink]:
    """A link with its tokenizers loaded; closed at the end."""
    names = families or ("byte_bpe",)
    link = ProcessLink(options, engine_command(folder, *names, **script))
    try:
        link.start()
        report: Report | None = link.next_report()
        assert isinstance(report, Hello), report
        for name in names:
            link.load(model(name).key, tables_fd(name))
        for _name in names:
            report = link.next_report()
            assert isinstance(report, Loaded | Refused | Fault), report
        yield link
    finally:
        link.close()


def put(slot: Slot, documents: Sequence[bytes]) -> tuple[int, int]:
    """Write a batch into a slot; its bytes and documents."""
    text = b"".join(documents)
    slot.text[: len(text)] = text
    slot.document_starts[: len(documents) + 1] = [0, *accumulate(map(len, documents))]
    return len(text), len(documents)


def launch(link: EngineLink, slot: Slot, documents: Sequence[bytes], count_only: bool = False) -> None:
    """Write and launch a batch."""
    n_bytes, n_documents = put(slot, documents)
    link.launch(slot, n_bytes, n_documents, 0 if count_only else FLAG_IDS)


def completions(link: EngineLink, n: int) -> dict[int, Completion]:
    """The next ones, by slot."""
    found: dict[int, Completion] = {}
    until_s = time.monotonic() + LIMIT_S
    while len(found) < n:
        assert time.monotonic() < until_s, "the engine is silent"
        found |= {completion.slot.number: completion for completion in link.wait(LIMIT_S)}
    return found


def wrong_documents(completion: Completion, documents: Sequence[bytes], which: Model) -> list[int]:
    """Documents whose ids, or whose reason to need the CPU, are not right."""
    slot, wrong = completion.slot, []
    for i, document in enumerate(documents):
        ids = slot.ids[slot.document_tokens[i] : slot.document_tokens[i + 1]].tolist()
        expected = which.ids(document)
        if (i in completion.needs_cpu) != (expected is None) or (expected is not None and ids != expected):
            wrong.append(i)
    return wrong


def mixed_batch(rng: random.Random, slot: Slot) -> list[bytes]:
    """Documents of many sizes that fit a slot, empty ones and invalid ones among them."""
    documents: list[bytes] = []
    room = slot.size.capacity
    while room > 0 and len(documents) < min(slot.size.max_documents, 40):
        text = "".join(rng.choices(WORDS, k=rng.choice((0, 1, 5, 30, 200)))).encode()
        document = b"\xff" + text if rng.random() < 0.05 else text
        if len(document) > room:
            break
        documents.append(document)
        room -= len(document)
    return documents[: rng.randrange(len(documents) + 1)]


def until(happened: Callable[[], bool]) -> None:
    """Wait for what other processes do; reaching the limit fails the test."""
    until_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < until_s, "what the test waits for did not happen"
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class Holdings:
    """What this process has at one moment."""

    files: Counter[tuple[str, int]]
    """Descriptors of each open file, by its name and inode."""
    threads: frozenset[threading.Thread]


def holdings() -> Holdings:
    """Of now, without what every look opens itself."""
    found: Counter[tuple[str, int]] = Counter()
    for entry in os.listdir("/proc/self/fd"):
        try:
            name, inode = os.readlink(f"/proc/self/fd/{entry}"), os.fstat(int(entry)).st_ino
        except OSError:
            continue
        if not name.startswith("/proc/"):
            found[name, inode] += 1
    return Holdings(found, frozenset(threading.enumerate()))


def added(before: Holdings) -> list[str]:
    """Open files and threads that were not there before. What was may go: other tests have left it."""
    now = holdings()
    files = [name for name, _inode in (now.files - before.files).elements()]
    return sorted([*files, *(thread.name for thread in now.threads - before.threads)])


@contextmanager
def crowded() -> Iterator[None]:
    """As many descriptors are open as of a service with a thousand connections: more than `select` takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
