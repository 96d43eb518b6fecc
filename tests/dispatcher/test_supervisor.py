"""The supervisor over real engine processes: starts, ends, restarts, tokenizers that come and go."""

from __future__ import annotations

import errno
import gc
import logging
import os
import queue
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher.gpu import supervisor as supervisor_module
from dispatcher.gpu import table_builder
from dispatcher.gpu.link import EngineLost
from dispatcher.gpu.messages import Progress, Report
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.process_link import ProcessLink
from dispatcher.gpu.supervisor import EngineStatus, Supervisor
from tests.engine_rig import (
    LIMIT_S,
    added,
    completions,
    engine_command,
    holdings,
    is_alive,
    launch,
    model,
    until,
    wrong_documents,
)

FAST: dict[str, Any] = {
    "gpus": "0",
    "gpu_classes_kib": "4,64",
    "gpu_contexts": 1,
    "gpu_restart_min_s": 0.01,
    "gpu_restart_max_s": 0.05,
    # A host that has other things to do is no fault of an engine.
    "gpu_watchdog_s": LIMIT_S,
}


class Watched:
    """A supervisor, and what it said."""

    def __init__(
        self, folder: Path, options: dict[str, Any], script: dict[str, Any], families: tuple[str, ...]
    ) -> None:
        self.ready: queue.SimpleQueue[tuple[int, ProcessLink]] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[tuple[int, ProcessLink, str]] = queue.SimpleQueue()
        self.supervisor = Supervisor(
            GpuRouteOptions(**FAST | options),
            on_ready=lambda gpu, link: self.ready.put((gpu, link)),
            on_lost=lambda gpu, link, reason: self.lost.put((gpu, link, reason)),
            command=engine_command(folder, *families, **script),
        )

    def next_link(self, *families: str) -> ProcessLink:
        """The link that is ready next, once these tokenizers are loaded."""
        _gpu, link = self.ready.get(timeout=LIMIT_S)
        until(lambda: all(link.slots(model(family).key) for family in families))
        return link

    def status(self) -> EngineStatus:
        """Of the only engine."""
        (status,) = self.supervisor.statuses()
        return status

    def limit_replays(self, watchdog_s: float) -> None:
        """Let the watchdog end replays that take longer, from now on."""
        self.supervisor._options = replace(self.supervisor._options, gpu_watchdog_s=watchdog_s)
        self.supervisor._wake()

    def pass_over_silence(self, link: ProcessLink) -> None:
        """Let an engine that will say nothing more seem to have been silent for long, until that is noticed."""

        def noticed() -> bool:
            # More than once: what it said at last may be read in between.
            link._heard_s -= supervisor_module.START_LIMIT_S
            for sent in list(link._models.values()):
                sent.sent_s -= supervisor_module.START_LIMIT_S
            self.supervisor._wake()
            return "made no progress" in self.status().reason

        until(noticed)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Any]:
    """Makes started supervisors, which are closed at the end."""
    made: list[Watched] = []

    def make(*families: str, options: dict[str, Any] | None = None, **script: Any) -> Watched:
        watched = Watched(tmp_path, options or {}, script, families or ("byte_bpe", "split_bpe"))
        made.append(watched)
        watched.supervisor.start()
        for family in families:
            watched.supervisor.add(model(family).key, model(family).data)
        return watched

    yield make
    for watched in made:
        watched.supervisor.close()


def answers(link: ProcessLink, family: str) -> bool:
    """Whether a document gets its ids."""
    which = model(family)
    slot = link.slots(which.key)[0]
    launch(link, slot, [b"one two", b"three"])
    return wrong_documents(completions(link, 1)[slot.number], [b"one two", b"three"], which) == []


def test_from_start_to_end(watch: Any) -> None:
    """An engine is started, gets the tokenizers, says what it is, answers, and ends with the supervisor."""
    watched = watch("byte_bpe", "split_bpe")
    link = watched.next_link("byte_bpe", "split_bpe")
    assert answers(link, "byte_bpe")
    assert answers(link, "split_bpe")
    status = watched.status()
    assert (status.state, status.reason, status.n_restarts) == ("ready", "", 0)
    assert status.facts is not None
    assert status.facts.name == "host"
    assert status.facts.total_bytes == 1 << 40
    assert 0 < status.facts.start_s < LIMIT_S
    assert status.cpu_ns > 0
    pid = link.pid
    watched.supervisor.close()
    assert not is_alive(pid)
    assert watched.status().state == "down"
    assert watched.lost.empty()
    with pytest.raises(EngineLost):
        link.wait(1)


def test_a_killed_engine_comes_back(watch: Any) -> None:
    """After kill -9 during a replay the loss is told, and a new process serves the same tokenizers."""
    watched = watch("byte_bpe", polls=1 << 62)
    link = watched.next_link("byte_bpe")
    launch(link, link.slots(model().key)[0], [b"one"])
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(EngineLost):
        link.wait(LIMIT_S)
    gpu, lost, reason = watched.lost.get(timeout=LIMIT_S)
    assert (gpu, lost, reason) == (0, link, "the engine process ended by SIGKILL")
    cpu_ns = watched.status().cpu_ns
    other = watched.next_link("byte_bpe")
    assert other.pid != link.pid
    status = watched.status()
    assert (status.state, status.reason, status.n_restarts) == ("ready", reason, 1)
    assert status.cpu_ns >= cpu_ns > 0


def test_the_watchdog_ends_hung_replays(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A replay that is not finished in time is the end of its engine, and the next one works."""
    caplog.set_level(logging.INFO, "sidetok.gpu")
    watched = watch("byte_bpe", hang_after=1)
    link = watched.next_link("byte_bpe")
    assert answers(link, "byte_bpe")
    launch(link, link.slots(model().key)[0], [b"one"])
    watched.limit_replays(0.1)
    with pytest.raises(EngineLost, match=r"within 0\.1 seconds"):
        link.wait(LIMIT_S)
    assert watched.lost.get(timeout=LIMIT_S)[2] == "a replay was not finished within 0.1 seconds"
    watched.limit_replays(LIMIT_S)
    assert answers(watched.next_link("byte_bpe"), "byte_bpe")
    assert any("next start in" in record.getMessage() for record in caplog.records)


def test_a_fault_of_the_device(watch: Any) -> None:
    """When the device dies its engine says so, ends, and is started again."""
    watched = watch("byte_bpe", fail_after=2)
    for _ in range(2):
        link = watched.next_link("byte_bpe")
        assert answers(link, "byte_bpe")
        assert answers(link, "byte_bpe")
        launch(link, link.slots(model().key)[0], [b"one"])
        assert watched.lost.get(timeout=LIMIT_S)[2] == "the device is dead"


def test_no_restarts_where_none_would_help(watch: Any) -> None:
    """Without a GPU the engine stays down, with the reason, after one try."""
    watched = watch("byte_bpe", unavailable="CuPy is not installed")
    until(lambda: watched.status().reason != "")
    status = watched.status()
    assert (status.state, status.reason, status.n_restarts) == ("down", "CuPy is not installed", 0)
    (engine,) = watched.supervisor._engines.values()
    assert engine.next_start_s is None
    assert watched.ready.empty()
    assert watched.lost.empty()


def test_starts_that_fail_are_tried_again(watch: Any, tmp_path: Path) -> None:
    """An engine that ends while it starts is started again until it works; nobody hears of a loss."""
    trouble = tmp_path / "trouble"
    trouble.touch()
    watched = watch("byte_bpe", crash_while=str(trouble))
    until(lambda: watched.status().n_restarts >= 3)
    assert watched.status().reason == "the engine process ended with status 9"
    trouble.unlink()
    assert answers(watched.next_link("byte_bpe"), "byte_bpe")
    assert watched.lost.empty()


def test_a_program_that_cannot_be_started(watch: Any, tmp_path: Path) -> None:
    """A missing program is a reason like any other."""
    watched = Watched(tmp_path, {}, {}, ())
    watched.supervisor._command = ["/nonexistent"]
    watched.supervisor.start()
    until(lambda: watched.status().n_restarts >= 2)
    assert "cannot be started" in watched.status().reason
    watched.supervisor.close()


def test_tokenizers_come_and_go(watch: Any) -> None:
    """A tokenizer that is added or removed appears in and leaves the running engine, and later ones."""
    watched = watch("byte_bpe", "split_bpe")
    link = watched.next_link("byte_bpe", "split_bpe")
    watched.supervisor.remove(model("split_bpe").key)
    until(lambda: not link.slots(model("split_bpe").key))
    assert answers(link, "byte_bpe")
    os.kill(link.pid, signal.SIGKILL)
    link = watched.next_link("byte_bpe")
    assert link.slots(model("split_bpe").key) == ()
    watched.supervisor.add(model("split_bpe").key, model("split_bpe").data)
    until(lambda: bool(link.slots(model("split_bpe").key)))
    assert answers(link, "split_bpe")


def test_removed_while_its_tables_are_built(watch: Any) -> None:
    """A tokenizer that is removed before its tables are there never appears."""
    watched = watch()
    link = watched.next_link()
    watched.supervisor.add(model("byte_bpe").key, model("byte_bpe").data)
    watched.supervisor.remove(model("byte_bpe").key)
    watched.supervisor.add(model("split_bpe").key, model("split_bpe").data)
    until(lambda: bool(link.slots(model("split_bpe").key)))
    assert link.slots(model("byte_bpe").key) == ()
    for _ in range(2):
        watched.supervisor.add(model("byte_bpe").key, model("byte_bpe").data)
        watched.supervisor.remove(model("byte_bpe").key)
    watched.supervisor.add(model("byte_bpe").key, model("byte_bpe").data)
    until(lambda: bool(link.slots(model("byte_bpe").key)))
    assert answers(link, "byte_bpe")


def test_what_the_device_cannot_serve(watch: Any) -> None:
    """The reason why a tokenizer has no GPU route can be asked for; the engine is none the worse."""
    watched = watch("byte_bpe", "word_piece")
    until(lambda: watched.supervisor.unserved(model("word_piece").key) != "")
    assert "not BPE" in watched.supervisor.unserved(model("word_piece").key)
    assert watched.supervisor.unserved(model("byte_bpe").key) == ""
    assert answers(watched.next_link("byte_bpe"), "byte_bpe")


def test_a_tokenizer_without_memory(watch: Any) -> None:
    """A tokenizer for which no engine has memory is not served, for that reason; the engine stays up."""
    watched = watch("byte_bpe", memory_bytes=100)
    until(lambda: watched.supervisor.unserved(model().key) != "")
    assert "smallest size class" in watched.supervisor.unserved(model().key)
    assert watched.status().state == "ready"


def test_less_memory_is_a_warning(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With memory for some classes only these are served, and the log says so."""
    caplog.set_level(logging.WARNING, "sidetok.gpu")
    watched = watch("byte_bpe", memory_bytes=100_000)
    link = watched.next_link("byte_bpe")
    assert [slot.size.capacity for slot in link.slots(model().key)] == [4096]
    until(lambda: any("memory for 1 of 2 execution contexts" in r.getMessage() for r in caplog.records))


def test_all_gpus(watch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto` starts an engine for every GPU that the first one sees, and none without a driver."""
    monkeypatch.setattr(supervisor_module, "_DRIVER", (tmp_path,))
    watched = watch("byte_bpe", options={"gpus": "auto"}, n_gpus=3)
    links = {}
    for _ in range(3):
        gpu, link = watched.ready.get(timeout=LIMIT_S)
        links[gpu] = link
    assert sorted(links) == [0, 1, 2]
    os.kill(links[1].pid, signal.SIGKILL)
    assert watched.lost.get(timeout=LIMIT_S)[0] == 1
    until(lambda: bool(links[2].slots(model().key)))
    assert answers(links[2], "byte_bpe")
    assert watched.ready.get(timeout=LIMIT_S)[0] == 1
    assert [status.n_restarts for status in watched.supervisor.statuses()] == [0, 1, 0]


@pytest.mark.parametrize(
    ("gpus", "reason"), [("auto", "no NVIDIA driver on this host"), ("none", "the option gpus is none")]
)
def test_no_gpus(watch: Any, monkeypatch: pytest.MonkeyPatch, gpus: str, reason: str) -> None:
    """Without GPUs there are no engines and no tables, and the reason is known."""
    monkeypatch.setattr(supervisor_module, "_DRIVER", ())
    watched = watch("byte_bpe", options={"gpus": gpus})
    assert watched.supervisor.statuses() == ()
    assert watched.supervisor.unserved(model().key) == reason


def test_closed_without_a_start(tmp_path: Path) -> None:
    """A supervisor that was never started leaves nothing behind either."""
    before = holdings()
    watched = Watched(tmp_path, {}, {}, ("byte_bpe",))
    watched.supervisor.close()
    watched.supervisor.close()
    assert added(before) == []


def test_nothing_is_left_behind(watch: Any) -> None:
    """After `close` no process, thread, descriptor or memory is left, also in the middle of a start."""
    before = holdings()
    for waits in (True, False):
        watched = watch("byte_bpe", "split_bpe")
        pids = [watched.next_link("byte_bpe", "split_bpe").pid] if waits else []
        watched.supervisor.close()
        assert not any(map(is_alive, pids))
        del watched.ready, watched.lost
        gc.collect()
        assert added(before) == []


def test_no_descriptors_for_an_engine(monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    """A link that cannot be made is a start that failed, and is tried again."""
    n_left = [2]

    class Link(ProcessLink):
        def __init__(self, *arguments: Any) -> None:
            n_left[0] -= 1
            if n_left[0] >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            super().__init__(*arguments)

    monkeypatch.setattr(supervisor_module, "ProcessLink", Link)
    watched = watch("byte_bpe")
    assert answers(watched.next_link("byte_bpe"), "byte_bpe")
    assert watched.status().n_restarts == 2
    assert "Too many open files" in watched.status().reason


def test_whoever_is_told_fails(watch: Any) -> None:
    """The engine is given up, and the thread goes on with the next one."""
    watched = watch("byte_bpe")
    watched.next_link("byte_bpe")
    told = watched.supervisor._on_ready
    n_left = [1]

    def fail_once(gpu: int, link: ProcessLink) -> None:
        n_left[0] -= 1
        if n_left[0] >= 0:
            raise RuntimeError("can't start new thread")
        told(gpu, link)

    watched.supervisor._on_ready = fail_once
    os.kill(watched.supervisor._engines[0].link.pid, signal.SIGKILL)
    assert answers(watched.next_link("byte_bpe"), "byte_bpe")
    assert watched.status().n_restarts == 2


@pytest.mark.parametrize("where", ["start", "load"])
def test_an_engine_that_hangs_is_replaced(watch: Any, tmp_path: Path, where: str) -> None:
    """At its start or while it loads a tokenizer: it says nothing, which is noticed, and the next one works."""
    (tmp_path / "hangs").write_text(where)
    watched = watch("byte_bpe", hang_while=str(tmp_path / "hangs"))
    until((tmp_path / "hung").exists)
    if where == "load":
        watched.ready.get(timeout=LIMIT_S)
    (tmp_path / "hangs").unlink()
    engine = watched.supervisor._engines[0]
    watched.pass_over_silence(engine.link)
    assert ("the load of a tokenizer" in watched.status().reason) == (where == "load")
    until(lambda: engine.link is not None and bool(engine.link.slots(model().key)))
    assert answers(engine.link, "byte_bpe")


def test_an_engine_that_is_stopped_while_it_loads(watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is replaced; one that takes long says so, and is not."""

    class Link(ProcessLink):
        n_signs = 0

        def receive(self) -> Report | None:
            report = super().receive()
            self.n_signs += self.facts is not None and isinstance(report, Progress)
            return report

    monkeypatch.setattr(supervisor_module, "ProcessLink", Link)
    (tmp_path / "slow").touch()
    watched = watch(slow_while=str(tmp_path / "slow"))
    _gpu, link = watched.ready.get(timeout=LIMIT_S)
    watched.supervisor.add(model().key, model().data)
    until(lambda: bool(link._models))
    os.kill(link.pid, signal.SIGSTOP)
    watched.pass_over_silence(link)
    assert "made no progress" in watched.lost.get(timeout=LIMIT_S)[2]
    _gpu, link = watched.ready.get(timeout=LIMIT_S)
    # One for each place; what comes after these is said while nothing gets on.
    until(lambda: link.n_signs > len(link.places) + 1)
    (tmp_path / "slow").unlink()
    until(lambda: bool(link.slots(model().key)))
    assert answers(link, "byte_bpe")
    assert watched.lost.empty()


def test_tables_whose_builder_was_killed(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are built again, and meanwhile it is known why the tokenizer is not served."""
    monkeypatch.setattr(table_builder, "MODULE", "no.such.module")
    monkeypatch.setattr(table_builder, "FIRST_PAUSE_S", 0.05)
    watched = watch("byte_bpe")
    until(lambda: "status 1" in watched.supervisor.unserved(model().key))
    monkeypatch.setattr(table_builder, "MODULE", "dispatcher.gpu.table_builder")
    assert answers(watched.next_link("byte_bpe"), "byte_bpe")
    assert watched.supervisor.unserved(model().key) == ""
