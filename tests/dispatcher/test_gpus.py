"""All GPUs of a service, over real engine processes on a host device: what serves, what does not, and what it costs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from dispatcher import calibration
from dispatcher import gpus as gpus_module
from dispatcher.costs import KINDS
from dispatcher.dispatcher import Dispatcher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.results import Reader
from dispatcher.gpu.supervisor import Supervisor
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError
from gpu_core.normal_form import Rewriter
from tests.data import tokenizer_json
from tests.engine_rig import LIMIT_S, ROUTE_OPTIONS, engine_command, until


class Made:
    """Makes started GPUs, and closes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clocks = ThreadClocks()
        self._made: list[Gpus] = []

    def __call__(self, calibrate: bool = False, options: dict[str, Any] | None = None, **script: Any) -> Gpus:
        """GPUs whose engines do as scripted."""
        command = engine_command(self._folder, "byte_bpe", **script)
        gpus = Gpus(GpuRouteOptions(**ROUTE_OPTIONS | (options or {})), self.clocks, self._folder, command, calibrate)
        self._made.append(gpus)
        gpus.start()
        return gpus

    def close(self) -> None:
        """Close all; no thread of them is left."""
        for gpus in self._made:
            gpus.close()
        until(lambda: not any(t.name.startswith(("sidetok-gpu", "sidetok-calib")) for t in threading.enumerate()))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """See `Made`."""
    made = Made(tmp_path)
    yield made
    made.close()


def encode(dispatcher: Dispatcher, tokenizer: Tokenizer, documents: list[str], route: Any = "auto") -> EncodedGroup:
    """The results of one call."""
    ended = threading.Event()
    told: list[tuple[EncodedGroup | None, SidetokError | None]] = []

    def on_done(result: EncodedGroup | None, error: SidetokError | None) -> None:
        told.append((result, error))
        ended.set()

    dispatcher.encode_group(tokenizer, documents, on_done, EncodeOptions(add_special_tokens=False), route=route)
    assert ended.wait(LIMIT_S)
    ((result, error),) = told
    assert error is None
    assert result is not None
    return result


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_loss_and_return_of_an_engine(made: Made, synthetic: Tokenizer) -> None:
    """Documents go to the engine when it is up, to the CPU while it is down, and the ids are the same."""
    gpus = made()
    key = synthetic.spec.digest
    assert gpus.why_not(key) != ""
    dispatcher = Dispatcher(
        DispatcherOptions(cpu_workers=1, policy="gpu"), lambda _: None, gpus=gpus, clocks=made.clocks
    )
    gpus.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: gpus.serves(key))
    assert gpus.why_not(key) == ""
    documents = ["some text", "", "\u4f60\u597d 123's", "x" * 600_000]
    expected = [document.ids for document in synthetic.encode(documents, EncodeOptions(add_special_tokens=False))]
    result = encode(dispatcher, synthetic, documents[:3])
    assert (list(map(bytes, result.ids)), result.route) == (expected[:3], "gpu")
    (status,) = gpus.statuses()
    assert (status.state, status.n_restarts) == ("ready", 0)
    assert status.facts is not None
    os.kill(gpus._supervisor._engines[0].link.pid, signal.SIGKILL)  # type: ignore[union-attr]
    # It may be back before anybody looks.
    until(lambda: not gpus.serves(key) or gpus.statuses()[0].n_restarts > 0)
    result = encode(dispatcher, synthetic, documents)
    assert list(map(bytes, result.ids)) == expected
    until(lambda: gpus.serves(key))
    assert encode(dispatcher, synthetic, documents[:3]).route == "gpu"
    assert gpus.snapshots()[0].ready
    # Replays are counted once they were handed out.
    until(lambda: gpus.snapshots()[0].batch_documents.sum >= 6)
    assert made.clocks.snapshot().keys() >= {"gpu_supervisor", "gpu_deliver"}
    assert gpus.statuses()[0].cpu_ns > 0
    dispatcher.close()


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_an_engine_that_cannot_be_understood_is_replaced(
    made: Made, synthetic: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documents take the CPU route; it lives on and would say nonsense again, so it is killed."""
    gpus = made()
    key = synthetic.spec.digest
    dispatcher = Dispatcher(
        DispatcherOptions(cpu_workers=1, policy="gpu"), lambda _: None, gpus=gpus, clocks=made.clocks
    )
    gpus.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: gpus.serves(key))
    expected = [document.ids for document in synthetic.encode(["a text"], EncodeOptions(add_special_tokens=False))]

    def fail(*_: Any) -> Any:
        raise IndexError

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "read", fail)
        assert list(map(bytes, encode(dispatcher, synthetic, ["a text"]).ids)) == expected
    until(lambda: gpus.statuses()[0].n_restarts == 1 and gpus.serves(key))
    result = encode(dispatcher, synthetic, ["a text"])
    assert (list(map(bytes, result.ids)), result.route) == (expected, "gpu")
    dispatcher.close()


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_a_removed_tokenizer_is_given_back(made: Made, synthetic: Tokenizer) -> None:
    """Once no model has it, its memory is given back and documents take the CPU route; it may come again."""
    gpus = made()
    key = synthetic.spec.digest
    dispatcher = Dispatcher(
        DispatcherOptions(cpu_workers=1, policy="gpu"), lambda _: None, gpus=gpus, clocks=made.clocks
    )
    for _ in range(2):
        gpus.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: gpus.serves(key))
    assert isinstance(gpus._supervisor, Supervisor)
    link = gpus._supervisor._engines[0].link
    assert link is not None
    expected = [document.ids for document in synthetic.encode(["a text"], EncodeOptions(add_special_tokens=False))]
    for n_left in (1, 0):
        gpus.remove(synthetic)
        if not n_left:
            until(lambda: not gpus.serves(key) and not link._models and not link._shared)
        result = encode(dispatcher, synthetic, ["a text"])
        assert (list(map(bytes, result.ids)), result.route) == (expected, "gpu" if n_left else "cpu")
    gpus.remove(synthetic)
    gpus.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: gpus.serves(key))
    result = encode(dispatcher, synthetic, ["a text"])
    assert (list(map(bytes, result.ids)), result.route) == (expected, "gpu")
    assert gpus.statuses()[0].n_restarts == 0
    dispatcher.close()


def test_nobody_waits_for_a_tokenizer_that_is_added(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What rewrites texts to normal form takes seconds to make; others come and go meanwhile."""
    begun, may_end = threading.Event(), threading.Event()

    class SlowRewriter(Rewriter):
        def __init__(self, *arguments: Any) -> None:
            begun.set()
            assert may_end.wait(LIMIT_S)
            super().__init__(*arguments)

    monkeypatch.setattr(gpus_module, "Rewriter", SlowRewriter)
    gpus = Gpus(GpuRouteOptions(gpus="none"), made.clocks)
    slow, other = (
        load_tokenizer(tokenizer_json(family), engine="reference", cache_dir=None)
        for family in ("split_bpe", "byte_bpe")
    )
    adding = threading.Thread(target=gpus.add, args=(slow, tokenizer_json("split_bpe")))
    adding.start()
    assert begun.wait(LIMIT_S)

    def come_and_go() -> None:
        gpus.add(other, tokenizer_json("byte_bpe"))
        gpus.remove(other)

    others = threading.Thread(target=come_and_go)
    others.start()
    others.join(LIMIT_S / 2)
    was_held_up = others.is_alive()
    may_end.set()
    adding.join()
    assert not was_held_up
    assert gpus.rewriter(slow.spec.digest) is not None
    gpus.remove(slow)
    assert gpus.rewriter(slow.spec.digest) is None


@pytest.mark.parametrize("synthetic", ["byte_bpe", "unigram"], indirect=True)
def test_costs_of_a_removed_tokenizer_are_forgotten(made: Made, synthetic: Tokenizer) -> None:
    """Once no model has it, be it one that GPUs can serve or not; those of others stay."""
    gpus = Gpus(GpuRouteOptions(gpus="none"), made.clocks)
    for key in (synthetic.spec.digest, "other"):
        gpus.costs.observe_cpu_route(key, KINDS[0], 10, 1, 1_000, 1_000, 1)
    for _ in range(2):
        gpus.add(synthetic, b"")
    gpus.remove(synthetic)
    assert len(gpus.costs.snapshot()) == 2
    gpus.remove(synthetic)
    assert {key.model for key in gpus.costs.snapshot()} == {"other"}


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_what_gpus_cannot_serve(made: Made, synthetic: Tokenizer) -> None:
    """Tokenizers of other kinds have a reason, and so has a host without a GPU."""
    unigram = load_tokenizer(tokenizer_json("unigram"), engine="reference", cache_dir=None)
    gpus = made(options={"gpu_restart_min_s": 30.0}, unavailable="no such device")
    gpus.add(unigram, tokenizer_json("unigram"))
    assert "not BPE" in gpus.why_not(unigram.spec.digest)
    gpus.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: "no such device" in gpus.why_not(synthetic.spec.digest))
    assert not gpus.any
    assert gpus.loads(synthetic.spec.digest) == []
    assert gpus.snapshots() == {}


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_both_routes_are_timed_once(
    made: Made, synthetic: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When an engine serves a model its costs get start values on both routes, which the next start finds on disk."""
    # A host that has other things to do is no reason to time less.
    monkeypatch.setattr(calibration, "PROBE_S", LIMIT_S)
    monkeypatch.setattr(calibration, "measure", partial(calibration.measure, budget_ns=1 << 62))
    monkeypatch.setattr(calibration, "SIZES", calibration.SIZES[:1])
    monkeypatch.setattr(calibration, "_endless", cache(calibration._endless.__wrapped__))

    def starts(gpus: Gpus) -> list[Any]:
        """Where both routes begin."""
        costs = [gpus.costs.of(route, synthetic.spec.digest, KINDS[0]) for route in ("cpu", "gpu")]
        return [curve.start for cost in costs for curve in (cost.time, cost.cpu)]

    folder = tmp_path / "costs"
    gpus = made(calibrate=True)
    defaults = starts(gpus)
    gpus.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: folder.exists() and len(list(folder.glob("*.json"))) == 2)
    until(lambda: not any(start in defaults for start in starts(gpus)))
    files = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = made(calibrate=True)
    again.add(synthetic, tokenizer_json("byte_bpe"))
    until(lambda: starts(again) == starts(gpus))
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == files
