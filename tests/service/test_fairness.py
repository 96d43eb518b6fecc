"""Fair shares over HTTP: a client is its key or its connection's peer, a model what the body names."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from dispatcher.options import DispatcherOptions
from tests.fakes import FakeTokenizer
from tests.service_fakes import FakeRegistry, eventually, run, running
from tests.wire import Line, Wire, ids, on_wire, request


def test_a_client_that_floods_is_refused_before_others() -> None:
    """With half of the slots in use a client over its share gets 429 and Retry-After; another one is served."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        quiet = wire.connect()
        quiet.send(request("a", x_api_key="quiet"))
        await quiet.wait()
        flood = [wire.connect() for _ in range(6)]
        for line in flood:
            line.send(request("hold", authorization="Bearer noisy"))
        refused: list[Line] = [line for line in flood if line.responses()]
        assert len(refused) == 2
        for line in refused:
            (answer,) = line.responses()
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert "noisy" not in str(answer)
        quiet.send(request("b", x_api_key="quiet"))
        await eventually(lambda: wire.it.admission.n_requests == 5)
        gate.open()
        assert (await quiet.wait(2))[1].ids == ids("b")
        for line in flood:
            await line.wait()

    on_wire(test, tokenizer=tokenizer, max_in_flight=8, cpu_workers=2)


def test_a_model_that_floods_is_refused_before_others() -> None:
    """Requests of many clients for one model leave room for another model; the refusal keeps the connection."""

    async def test() -> None:
        slow, quick = FakeTokenizer(), FakeTokenizer()
        gate = slow.gate("hold")
        registry = FakeRegistry(aliases=("lazy=slow",), slow=slow, quick=quick)
        async with running(registry, work=DispatcherOptions(cpu_workers=4, max_in_flight=6)) as it:

            def ask(text: str, model: str, client: str) -> Any:
                body = orjson.dumps({"text": text, "model": model})
                return asyncio.ensure_future(it.call("/v1/encode", body, x_api_key=client))

            assert (await ask("a", "quick", "0")).status == 200
            held = [ask("hold", model, str(i)) for i, model in enumerate(("slow", "lazy", "slow"))]
            await eventually(lambda: it.admission.n_requests == 3)
            send = await ask("hold", "lazy", "9")
            assert send.status == 429
            assert b"This model" in send.body
            assert it.admission.shed["model_share"] == 1
            other = ask("b", "quick", "9")
            await eventually(lambda: it.admission.n_requests == 4)
            gate.open()
            assert (await other).status == 200
            assert [answer.status for answer in await asyncio.gather(*held)] == [200] * 3

    run(test())


def test_a_refused_model_keeps_the_connection() -> None:
    """A body that was read before its model turned out to hold too much is answered, and the next request as well."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        wire.it.service.registry.n_models = 2
        holding = wire.it.admission.models.of("fake", 1)
        wire.it.admission.models.of("other", 1)
        holding.n_requests = 4
        line.send(request("a"))
        assert (await line.wait())[0].status == 429
        assert not line.transport.closed
        holding.n_requests = 0
        line.send(request("b"))
        assert (await line.wait(2))[1].ids == ids("b")

    on_wire(test, max_in_flight=4, fair_above=0.0)


def test_an_answer_that_would_come_too_late_is_refused_at_once() -> None:
    """Over the predicted wait that the service or the request allows: 429, and Retry-After says how long it will be."""

    async def test(wire: Wire) -> None:
        # No window ends, so no answer of this test changes the rate.
        wire.it.admission._clock = lambda: 0
        lane = wire.it.admission.backlog.small
        lane.rate, lane.work = 1000.0, 20_000
        for timeout, status in ((None, 200), ("30", 200), ("10", 429)):
            line = wire.connect()
            line.send(request("a", **({"x_request_timeout": timeout} if timeout else {})))
            (answer,) = await line.wait()
            assert answer.status == status
        assert answer.headers["retry-after"] == "15"
        assert wire.it.admission.shed["wait"] == 1
        lane.work -= 20_000

    on_wire(test, max_wait_s=25.0)
