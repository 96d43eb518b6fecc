"""Models come and go while the service runs: for whoever has the key, without waiting, and only by rules."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from dispatcher import model_process
from dispatcher.embedded import embedded_tokenizer_json
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.remote_tokenizer import RemoteTokenizer
from dispatcher.tokenizer import Tokenizer as LoadedTokenizer
from service.errors import Conflict, ModelNotReady, UnknownModel
from service.options import ServiceOptions
from service.registry import MAX_MODELS, Model, Registry
from tests.fakes import LIMIT_S
from tests.service.small_model import registry_of, write_model
from tests.service_fakes import Running, eventually, run, running

KEY = "the-admin-key"
MAX_HELD_S = 0.1
"""What a load may take of this process at a time; about 0.01 s as measured."""


def load_reference() -> Tokenizer:
    """The embedded model, by the reference library."""
    return Tokenizer.from_str(embedded_tokenizer_json().decode())


def with_admin(registry: Registry, test: Any, key: str = KEY) -> None:
    """Run a test with a service that has an admin key."""

    async def main() -> None:
        async with running(registry, ServiceOptions(admin_key=key)) as it:
            await test(it)

    run(main())


async def ask(it: Running, method: str, path: str = "", body: Any = None, key: str = KEY) -> tuple[int, Any]:
    """Status and fields of an answer."""
    data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
    answer = await it.call(f"/v1/tokenizers{path}", data, method=method, authorization=f"Bearer {key}")
    return answer.status, orjson.loads(answer.body)


def test_a_model_is_added_served_and_removed(tmp_path: Path) -> None:
    """202 at once, completed later; then requests name it; afterwards they do not."""
    registry = registry_of(f"first={write_model(tmp_path / 'first')}")
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    source = str(write_model(tmp_path / "second"))

    async def test(it: Running) -> None:
        wanted = {"name": "second", "source": source, "chat_template_path": str(template)}
        code, added = await ask(it, "POST", "", wanted)
        assert (code, added["status"]) == (202, "pending")
        assert set(added) == {"id", "status", "message", "vocab_size"}

        async def status() -> str:
            return str((await ask(it, "GET", f"/{added['id']}/status"))[1]["status"])

        while await status() == "processing":
            await eventually(lambda: registry.models()[-1].state != "loading")
        assert await status() == "completed"
        code, listed = await ask(it, "GET")
        assert [item["name"] for item in listed["tokenizers"]] == ["first", "second"]
        assert listed["tokenizers"][1] == {"id": added["id"], "name": "second", "source": source, "vocab_size": 258}
        assert (await ask(it, "GET", f"/{added['id']}"))[1] == listed["tokenizers"][1]
        body = orjson.dumps({"model": "second", "messages": [{"role": "user", "content": "abc"}]})
        assert orjson.loads((await it.call("/tokenize", body, content_type="application/json")).body)["count"] == 3
        assert (await ask(it, "POST", "", wanted))[0] == 409
        assert await ask(it, "DELETE", f"/{added['id']}") == (
            200,
            {"success": True, "message": "The tokenizer 'second' was removed."},
        )
        assert (await it.call("/tokenize", body, content_type="application/json")).status == 404
        assert (await ask(it, "GET", f"/{added['id']}"))[0] == 404

    with_admin(registry, test)


def test_processes_end_with_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is still there when the service closes leaves no process behind."""
    monkeypatch.setattr(model_process, "CLOSE_S", LIMIT_S)
    source = str(write_model(tmp_path / "m"))
    pids: list[int | None] = []

    async def test(it: Running) -> None:
        await ask(it, "POST", "", {"name": "second", "source": source})
        await eventually(lambda: it.service.registry.models()[-1].state == "ready")
        tokenizer = it.service.registry.models()[-1].tokenizer
        assert isinstance(tokenizer, RemoteTokenizer)
        pids.append(tokenizer.process.pid)

    with_admin(registry_of(f"first={source}"), test)
    assert [Path(f"/proc/{pid}").exists() for pid in pids] == [False]


def test_a_failed_load_harms_nobody(tmp_path: Path) -> None:
    """Its status says why; the service stays ready."""
    registry = registry_of(f"first={write_model(tmp_path / 'first')}")

    async def test(it: Running) -> None:
        _, added = await ask(it, "POST", "", {"name": "broken", "source": str(tmp_path / "nowhere")})
        await eventually(lambda: registry.models()[-1].state == "failed")
        _, status = await ask(it, "GET", f"/{added['id']}/status")
        assert status["status"] == "failed"
        assert "no such file" in status["message"]
        assert (await it.call("/ready", method="GET")).status == 200
        assert (await ask(it, "DELETE", f"/{added['id']}"))[0] == 200

    with_admin(registry, test)


class SlowRegistry(Registry):
    """Models whose load waits for the test."""

    def __init__(self, *models: str) -> None:
        super().__init__(ServiceOptions(model=models), DispatcherOptions(cpu_engine="reference"))
        self.may_load = threading.Event()

    def load(self, model: Model) -> None:
        """See `Registry`."""
        self.may_load.wait()
        super().load(model)


def test_a_load_holds_up_nobody(tmp_path: Path) -> None:
    """While it runs, other models are served, the new one says 503, and the service is ready."""
    folder = write_model(tmp_path / "m")
    registry = SlowRegistry(f"first={folder}")

    async def test(it: Running) -> None:
        await eventually(lambda: registry.ready)
        _, added = await ask(it, "POST", "", {"name": "slow", "source": str(folder)})
        assert (await ask(it, "GET", f"/{added['id']}/status"))[1]["status"] == "processing"
        for name, status in (("first", 200), ("slow", 503)):
            body = orjson.dumps({"model": name, "text": "a"})
            assert (await it.call("/v1/encode", body)).status == status
        assert (await it.call("/ready", method="GET")).status == 200
        registry.may_load.set()
        await eventually(lambda: registry.models()[-1].state == "ready")
        assert (await it.call("/v1/encode", orjson.dumps({"model": "slow", "text": "a"}))).status == 200

    with_admin(registry, test)


class Stop:
    """An option that stops the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return signal.raise_signal, (int(signal.SIGSTOP),)


def test_a_load_can_be_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DELETE ends a load that goes on, and one that has not begun; the name is free at once; no process is left."""
    # Nobody sees that the process stands still, so its load goes on until it is given up.
    monkeypatch.setattr(model_process, "LOOK_S", 2 * LIMIT_S)

    async def test(it: Running) -> None:
        registry, source = it.service.registry, str(tmp_path / "m")
        with monkeypatch.context() as patch:
            patch.setattr(registry, "_cache_dir", Stop())
            await ask(it, "POST", "", {"name": "begun", "source": source})
            begun = registry.models()[-1]
            await eventually(lambda: begun.process is not None and begun.process.is_running)
        await ask(it, "POST", "", {"name": "waiting", "source": source})
        waiting, process = registry.models()[-1], begun.process
        assert [(await ask(it, "DELETE", f"/{name}"))[0] for name in ("waiting", "begun")] == [200, 200]
        assert (begun.state, waiting.state) == ("loading", "loading")
        await ask(it, "POST", "", {"name": "begun", "source": source})
        await eventually(lambda: registry.models()[-1].state == "ready")
        assert (begun.state, begun.tokenizer, begun.process) == ("failed", None, None)
        assert waiting.state == "loading"
        assert process is not None
        assert not process.is_running
        assert (await it.call("/v1/encode", orjson.dumps({"model": "begun", "text": "a"}))).status == 200

    with_admin(registry_of(f"first={write_model(tmp_path / 'm')}"), test)


class SlowGpus(Gpus):
    """No GPUs, which take a tokenizer when the test says so."""

    def __init__(self) -> None:
        super().__init__(GpuRouteOptions(gpus="none"), ThreadClocks())
        self.begun, self.may_take = threading.Event(), threading.Event()
        self.n_taken = 0

    def add(self, tokenizer: LoadedTokenizer, data: bytes) -> None:
        """See `Gpus`."""
        self.begun.set()
        assert self.may_take.wait(LIMIT_S)
        self.n_taken += 1

    def remove(self, tokenizer: LoadedTokenizer) -> None:
        """See `Gpus`."""
        self.n_taken -= 1


def test_a_removal_does_not_wait_for_gpus(tmp_path: Path) -> None:
    """A model goes at once while GPUs take its tokenizer; then they give it back, and its process has ended."""
    folder = write_model(tmp_path / "m")
    registry = registry_of(f"first={folder}")
    registry.gpus = gpus = SlowGpus()
    model = registry.add("second", str(folder))
    loading = threading.Thread(target=registry.load, args=(model,))
    loading.start()
    assert gpus.begun.wait(LIMIT_S)
    removing = threading.Thread(target=registry.remove, args=(model,))
    removing.start()
    removing.join(LIMIT_S / 2)
    was_held_up = removing.is_alive()
    gpus.may_take.set()
    loading.join()
    assert not was_held_up
    assert (model.state, model.tokenizer, model.process, gpus.n_taken) == ("failed", None, None, 0)
    third = registry.add("second", str(folder))
    registry.load(third)
    assert (third.state, gpus.n_taken) == ("ready", 1)
    registry.remove(third)
    assert gpus.n_taken == 0


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """What other tests left is not looked through while time is taken."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_real_load_stops_nobody(tmp_path: Path) -> None:
    """While a model of real size is added, this process never works for long between two turns of the event loop.

    A load in this process would hold the interpreter for 0.15 s and more. CPU time is looked at, not the clock on the
    wall: what other processes do on a busy machine does not count.
    """
    work = DispatcherOptions(cache_dir=str(tmp_path / "cache"))
    registry = Registry(ServiceOptions(model=(f"first={write_model(tmp_path / 'first')}",)), work)
    registry.load_all()

    async def test(it: Running) -> None:
        _, added = await ask(it, "POST", "", {"name": "real", "source": "embedded"})
        longest_s, seen_s = 0.0, time.process_time()
        while registry.models()[-1].state == "loading":
            await asyncio.sleep(0.001)
            now_s = time.process_time()
            longest_s, seen_s = max(longest_s, now_s - seen_s), now_s
        assert longest_s < MAX_HELD_S
        model = registry.models()[-1]
        assert isinstance(model.tokenizer, RemoteTokenizer), model.error
        pid = model.tokenizer.process.pid
        body = orjson.dumps({"model": "real", "text": "Hello"})
        ids = orjson.loads((await it.call("/v1/encode", body)).body)["ids"]
        assert ids == load_reference().encode("Hello").ids
        del model
        assert (await ask(it, "DELETE", f"/{added['id']}"))[0] == 200
        await eventually(lambda: not Path(f"/proc/{pid}").exists())

    with_admin(registry, test)


def test_the_key(tmp_path: Path) -> None:
    """401 without it; no such path where there is none."""
    registry = registry_of(f"first={write_model(tmp_path / 'first')}")

    async def test(it: Running) -> None:
        for key in ("", "wrong", KEY + "x", "schlüssel"):
            for method, path in (("GET", ""), ("POST", ""), ("GET", "/x"), ("GET", "/x/status"), ("DELETE", "/first")):
                code, fields = await ask(it, method, path, key=key)
                assert (code, fields["error"]["type"]) == (401, "unauthorized")
        assert (await it.call("/v1/tokenizers", method="GET")).status == 401
        assert (await it.call("/v1/models", method="GET")).status == 200

    async def without(it: Running) -> None:
        assert (await ask(it, "GET"))[0] == 404

    with_admin(registry, test)
    with_admin(registry, without, key="")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        ({}, 400),
        ({"name": "x"}, 400),
        ({"name": "", "source": "y"}, 400),
        ({"name": "a b", "source": "y"}, 400),
        ({"name": "x", "source": "y", "more": 1}, 400),
        ({"name": "first", "source": "y"}, 409),
        (b" " * 70_000, 413),
    ],
)
def test_what_cannot_be_added(body: Any, status: int, tmp_path: Path) -> None:
    """Bodies that do not fit, and names that are taken."""

    async def test(it: Running) -> None:
        code, fields = await ask(it, "POST", "", body)
        assert code == status
        assert set(fields["error"]) == {"message", "type"}

    with_admin(registry_of(f"first={write_model(tmp_path / 'first')}"), test)


def test_rules_of_the_registry(tmp_path: Path) -> None:
    """The default stays; aliases are names; there is a most; tables that were read before do not change."""
    registry = registry_of(f"first={write_model(tmp_path / 'm')}", alias=("other=first",))
    for name in ("first", "other"):
        with pytest.raises(Conflict):
            registry.add(name, "x")
    with pytest.raises(Conflict):
        registry.remove(registry.default)
    seen = registry.models()
    added = registry.add("new", "x")
    assert (len(seen), registry.n_models, registry.ready) == (1, 2, True)
    with pytest.raises(ModelNotReady):
        registry.resolve("new")
    added.state = "failed"
    registry.remove(added)
    assert registry.n_models == 1
    with pytest.raises(UnknownModel):
        registry.resolve("new")
    for i in range(MAX_MODELS - 1):
        registry.add(f"m{i}", "x")
    with pytest.raises(Conflict, match="already"):
        registry.add("one more", "x")
