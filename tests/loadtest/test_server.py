"""What a server says of itself, as far as it says anything."""

from __future__ import annotations

import json

import pytest

from loadtest.errors import TargetUnreachable
from loadtest.server import ask_server, wait_for
from loadtest.target import parse_target
from tests.loadtest.fake_server import faking, http

MODELS = [
    {"id": "a", "aliases": ["x"], "tokenizer": {"digest": "aa"}},
    {"id": "b", "default": True, "tokenizer": None},
]


def test_models_by_name() -> None:
    """A model is found by its name, an alias, or as the default; its digest where there is one."""
    with faking(lambda number, body: http(200, json.dumps({"version": "1", "data": MODELS}).encode())) as server:
        found = ask_server(parse_target(f"http://127.0.0.1:{server.port}"))
    assert found.version is not None
    assert found.version["version"] == "1"
    assert [(found.model(name) or {}).get("id") for name in ("a", "x", "b", "", "other")] == ["a", "a", "b", "b", None]
    assert [found.digest(name) for name in ("a", "b", "other")] == ["aa", None, None]


@pytest.mark.parametrize(
    "reply", [http(404, b"{}"), http(200, b"no json"), http(200, b"[]"), http(200, b'{"data": [7]}')]
)
def test_a_server_that_says_nothing(reply: bytes) -> None:
    """Version and models may be missing."""
    with faking(lambda number, body: reply) as server:
        found = ask_server(parse_target(f"http://127.0.0.1:{server.port}"))
    assert found.models == []
    assert found.digest("") is None


def test_waiting_for_a_server() -> None:
    """It is waited for while it is not ready, and not where there is nothing to wait for."""
    with faking(lambda number, body: http(503 if number < 3 else 200, b"{}")) as server:
        wait_for(parse_target(f"http://127.0.0.1:{server.port}"), 60)
        assert server.n_requests == 4
    with faking(lambda number, body: http(404, b"")) as server:
        wait_for(parse_target(f"http://127.0.0.1:{server.port}"), 0)
    with (
        faking(lambda number, body: http(503, b"")) as server,
        pytest.raises(TargetUnreachable, match="not ready: 503"),
    ):
        wait_for(parse_target(f"http://127.0.0.1:{server.port}"), 0)
