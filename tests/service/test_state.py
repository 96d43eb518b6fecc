"""The state behind the app: start, readiness, drain, the end, and a ticker that survives."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dispatcher.backlog import HUGE_BYTES
from service.state import IDLE_TICKS
from tests.fakes import LIMIT_S, FakeTokenizer, Gate
from tests.service_fakes import FakeRegistry, eventually, run, running


def registry() -> FakeRegistry:
    """One model."""
    return FakeRegistry(fake=FakeTokenizer())


def test_loading_is_off_the_loop() -> None:
    """Models load on a thread of their own; the future of `start` ends when they are loaded."""

    async def test() -> None:
        models = registry()
        models.loading = Gate()
        async with running(models) as it:
            loaded = it.service.start()
            await eventually(models.loading.entered.is_set)
            assert not loaded.done()
            models.loading.open()
            await loaded

    run(test())


def test_ready_follows_models_and_drain() -> None:
    """Ready is what the models are, until a drain begins."""

    async def test() -> None:
        models = registry()
        async with running(models) as it:
            assert it.service.ready
            models.models()[0].state = "loading"
            assert not it.service.ready
            models.models()[0].state = "ready"
            it.service.drain()
            it.service.drain()
            assert not it.service.ready
            assert it.service.gate.closing

    run(test())


def test_background_work_is_off_the_loop_and_counted() -> None:
    """What is no request runs on one thread of its own, whose CPU time has a part."""

    async def test() -> None:
        async with running(registry()) as it:
            names = [await it.service.in_background(lambda: threading.current_thread().name) for _ in range(3)]
            assert len(set(names)) == 1
            assert threading.current_thread().name not in names
            assert {"background", "event_loop", "load"} <= set(it.service.dispatcher.clocks.snapshot())

    run(test())


@pytest.mark.parametrize("part", ["dispatcher", "gate"])
def test_the_ticker_survives_a_failure(part: str) -> None:
    """A tick that breaks is followed by another: deadlines go on being enforced."""

    async def test() -> None:
        async with running(registry()) as it:
            calls = []

            class Broken:
                """The part, but for its sweep."""

                def __init__(self, whole: object) -> None:
                    self._whole = whole

                def __getattr__(self, name: str) -> object:
                    return getattr(self._whole, name)

                def sweep(self) -> None:
                    calls.append(1)
                    raise RuntimeError("x")

            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            setattr(it.service, part, Broken(getattr(it.service, part)))
            await eventually(lambda: len(calls) >= 3)

    run(test())


def test_memory_of_huge_jobs_is_given_back() -> None:
    """When nothing was in flight for a while after a huge job, free memory is released, once."""

    async def test() -> None:
        async with running(registry()) as it:
            released = []
            it.service._release_memory = lambda: released.append(1)  # type: ignore[method-assign]
            for n_bytes, n_released in ((100, 0), (HUGE_BYTES + 1, 1)):
                answer = await it.call("/v1/count", b"x" * n_bytes, content_type="application/octet-stream")
                assert answer.status == 200
                await eventually(lambda n=n_released: it.service.dispatcher.n_huge_finished == n)  # type: ignore[misc]
                for _ in range(3 * IDLE_TICKS):
                    it.service._watch_memory()
                assert len(released) == n_released

    run(test())


def test_close_ends_the_threads() -> None:
    """After `close` no thread of the service is left."""

    async def test() -> None:
        async with running(registry()) as it:
            await it.service.in_background(lambda: None)

    before = set(threading.enumerate())
    run(test())
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
    left = {thread.name for thread in threading.enumerate() if thread.name.startswith("sidetok")}
    assert left <= {thread.name for thread in before}
