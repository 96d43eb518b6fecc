"""Routes that are turned by their caller, over real engine processes: no thread takes part."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.dispatcher import Dispatcher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.tokenizer import Tokenizer
from tests.data import tokenizer_json
from tests.dispatcher.group_caller import PLAIN, GroupCaller
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import LIMIT_S, ROUTE_OPTIONS, engine_command, until


class Driven(GroupCaller):
    """A dispatcher with one GPU that the calling thread drives."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, engine: str = "process", **script: Any) -> None:
        command = engine_command(folder, "byte_bpe", **script)
        files = {tokenizer.spec.digest: str(folder / "byte_bpe.json")}
        gpus = Gpus(
            GpuRouteOptions(**ROUTE_OPTIONS, gpu_engine=engine),
            ThreadClocks(),
            folder,
            command,
            calibrate=False,
            driven=True,
            make_gpu=HostEngine(files).gpu,
        )
        options = DispatcherOptions(cpu_workers=1, policy="gpu")
        super().__init__(gpus, Dispatcher(options, lambda _: None, gpus=gpus), tokenizer)
        self.gpus.start()
        self.gpus.add(tokenizer, tokenizer_json("byte_bpe"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Take turns, when there is something to do, until a condition holds."""
        assert self.gpus.driver is not None
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s
            if select.select([self.gpus.driver], [], [], 0.01)[0] or self.gpus.driver.is_busy:
                self.gpus.driver.turn()

    def encode(self, documents: list[str]) -> EncodedGroup:
        """The results of one call."""
        results = self.submit(documents)
        self.until(lambda: bool(results))
        return results[0]

    def close(self) -> None:
        """End it; no thread of a route was ever there."""
        assert not any(thread.name.startswith("sidetok-gpu-") for thread in threading.enumerate())
        self.gpus.close()
        self.dispatcher.close()


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_the_caller_drives_through_loss_and_return(tmp_path: Path, synthetic: Tokenizer) -> None:
    """Results come on its thread only, with the ids of the CPU route; a killed engine costs no answer."""
    driven = Driven(tmp_path, synthetic)
    driven.until(lambda: driven.serves)
    documents = ["some text", "", "\u4f60\u597d 123's", "x" * 300_000]
    expected = [document.ids for document in synthetic.encode(documents, PLAIN)]
    result = driven.encode(documents)
    assert (list(map(bytes, result.ids)), result.route) == (expected, "gpu")
    assert driven.threads == {threading.get_ident()}
    for _ in range(2):
        results = [driven.submit(documents[:3]) for _ in range(20)]
        os.kill(driven.gpus._supervisor._engines[0].link.pid, signal.SIGKILL)  # type: ignore[union-attr]
        driven.until(lambda: all(results))  # noqa: B023
        assert all(len(result) == 1 and list(map(bytes, result[0].ids)) == expected[:3] for result in results)
        n_restarts = driven.gpus.statuses()[0].n_restarts
        driven.until(lambda: driven.gpus.statuses()[0].n_restarts > n_restarts or driven.serves)  # noqa: B023
        driven.until(lambda: driven.serves)
    assert driven.encode(documents[:3]).route == "gpu"
    driven.close()


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_groups_of_other_threads(tmp_path: Path, synthetic: Tokenizer) -> None:
    """Any thread submits; a long document of one of them is filled by somebody."""
    driven = Driven(tmp_path, synthetic)
    driven.until(lambda: driven.serves)
    document = "y " * 200_000
    (expected,) = (document.ids for document in synthetic.encode([document], PLAIN))
    results: list[list[EncodedGroup]] = []
    threads = [threading.Thread(target=lambda: results.append(driven.submit([document]))) for _ in range(6)]
    for thread in threads:
        thread.start()
    driven.until(lambda: len(results) == 6 and all(results))
    assert all(bytes(result[0].ids[0]) == expected for result in results)
    assert driven.threads == {threading.get_ident()}
    driven.close()


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_closing_answers_what_is_under_way(tmp_path: Path, synthetic: Tokenizer) -> None:
    """An engine that hangs keeps nothing: at the end everything is answered by the CPU route."""
    driven = Driven(tmp_path, synthetic, hang_after=0)
    driven.until(lambda: driven.serves)
    results = [driven.submit(["text"]) for _ in range(3)]
    driven.gpus.close()
    until(lambda: all(results))
    assert {result[0].route for result in results} == {"cpu"}
    driven.close()


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
@pytest.mark.parametrize("engine", ["process", "local"])
def test_a_callback_may_close(tmp_path: Path, synthetic: Tokenizer, engine: str) -> None:
    """The turn that it is called from ends in peace, and so do all that follow."""
    driven = Driven(tmp_path, synthetic, engine)
    driver = driven.gpus.driver
    assert driver is not None
    driven.until(lambda: driven.serves)
    while driver.rest(-1.0):
        pass
    errors: list[Exception | None] = []

    def on_done(result: EncodedGroup | None, error: Exception | None) -> None:
        driver.close()
        errors.append(error)

    driven.dispatcher.encode_group(synthetic, ["text"], on_done, PLAIN)
    driven.until(lambda: bool(errors))
    driver.wake()
    assert not driver.rest(1.0)
    assert errors == [None]
    driven.close()
