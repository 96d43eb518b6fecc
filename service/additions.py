"""Models that come and go while others are served."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from uuid import uuid4

from dispatcher.meter import ThreadClocks
from service.errors import UnknownModel
from service.registry import Model, Registry

log = logging.getLogger("sidetok.tokenizers")


@dataclass(frozen=True)
class Change:
    """One model that is to come or to go."""

    kind: Literal["add", "remove"]
    name: str
    path: str = ""
    template_path: str = ""
    id: str = field(default_factory=lambda: uuid4().hex)
    """Of the model that is added; the same in every process that adds it."""

    def to_json(self) -> dict[str, Any]:
        """As the content of a message."""
        return asdict(self)


class Additions:
    """Makes changes to a registry. All methods run on the event loop; loads have threads, one after the other."""

    def __init__(self, registry: Registry, clocks: ThreadClocks) -> None:
        self._registry = registry
        self._clocks = clocks
        self._one_load = threading.Lock()

    def make(self, change: Change) -> tuple[Model, asyncio.Future[None] | None]:
        """Make one change: the model, and when one that is added is loaded. Raises `Conflict` and `UnknownModel`."""
        if change.kind == "add":
            model = self._registry.add(change.name, change.path, change.template_path)
            model.id = change.id
            return model, self._begin_load(model)
        model = self.named(change.name)
        self._registry.remove(model)
        log.info("model removed", extra={"model": model.name})
        return model, None

    def named(self, name_or_id: str) -> Model:
        """The model of that id or name. Raises `UnknownModel`."""
        for model in self._registry.models():
            if name_or_id in (model.id, model.name):
                return model
        raise UnknownModel("There is no such tokenizer.")

    def _begin_load(self, model: Model) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[None] = loop.create_future()

        def load() -> None:
            with self._one_load, self._clocks.counting("load"):
                self._registry.load(model)
            # The loop may have ended before the load.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: None if loaded.done() else loaded.set_result(None))

        # A daemon: a load that takes long does not hold up the exit.
        threading.Thread(target=load, name="sidetok-load-added", daemon=True).start()
        return loaded
