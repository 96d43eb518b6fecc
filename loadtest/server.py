"""The server under test: whether it is ready, and what it says of itself."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from loadtest.errors import TargetUnreachable
from loadtest.target import Target

RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself."""

    version: dict[str, Any] | None
    models: list[dict[str, Any]]

    def model(self, name: str) -> dict[str, Any] | None:
        """The model of this name or alias, or the default one for no name."""
        named = [m for m in self.models if name in (m.get("id"), *(m.get("aliases") or ()))]
        default = [m for m in self.models if m.get("default")]
        return next(iter(named if name else default or self.models), None)

    def digest(self, name: str) -> str | None:
        """SHA-256 of the tokenizer file of a model, where the server says it."""
        tokenizer = (self.model(name) or {}).get("tokenizer") or {}
        return tokenizer.get("digest")


def wait_for(target: Target, patience_s: float) -> None:
    """Wait until a server is ready, or has no such endpoint. Raises `TargetUnreachable`."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            status, _ = target.get("/ready")
            if status in (200, 404):
                return
            reason = f"{target} is not ready: {status}"
        except TargetUnreachable as error:
            reason = str(error)
        if time.monotonic() >= until_s:
            raise TargetUnreachable(reason)
        time.sleep(RETRY_S)


def wait_for_route(target: Target, model: str, route: str, patience_s: float) -> None:
    """Wait until a model is served on this route, for servers that say so. Raises `TargetUnreachable`."""
    until_s = time.monotonic() + patience_s
    while True:
        routes = (ask_server(target).model(model) or {}).get("routes", {})
        # No routes at all: a server that knows none. None instead of routes: the model is not loaded yet.
        found = (routes or {}).get(route, {"serves": routes == {}})
        if found.get("serves"):
            return
        if time.monotonic() >= until_s:
            raise TargetUnreachable(f"{target} has no route {route}: {found.get('reason', 'it does not say why')}")
        time.sleep(RETRY_S)


def ask_server(target: Target) -> Server:
    """Version and models. Raises `TargetUnreachable` when nothing answers."""
    status, body = target.get("/version")
    version = _json(body) if status == 200 else None
    status, body = target.get("/v1/models")
    models = (_json(body) or {}).get("data", []) if status == 200 else []
    return Server(version, [m for m in models if isinstance(m, dict)])


def _json(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
