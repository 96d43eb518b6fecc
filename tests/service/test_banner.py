"""The banner: a request that works, with the answer that it gets."""

from __future__ import annotations

import json
import shlex

import pytest

from dispatcher.options import DispatcherOptions
from service.banner import EXAMPLE_TEXT, banner, example_request, show_banner
from service.options import ServiceOptions
from service.registry import Registry

URL = "http://127.0.0.1:8400"
SOCKET = "/run/my sockets/sidetok.sock"


@pytest.fixture(scope="module")
def registry() -> Registry:
    """The embedded model, loaded with the engine that needs no proof."""
    registry = Registry(ServiceOptions(), DispatcherOptions(cpu_engine="reference"))
    registry.load_all()
    return registry


def test_it_names_both_addresses_and_shows_the_answer() -> None:
    """Address, socket, a curl line, and the JSON that comes back."""
    lines = banner(URL, SOCKET, "m", [1, 2, 3]).splitlines()
    shown = dict(line.split(None, 1) for line in lines[1:])
    assert shown["url"] == URL
    assert shown["socket"] == SOCKET
    assert shown["try"] == example_request(URL, SOCKET)
    assert json.loads(shown["answer"]) == {"model": "m", "count": 3, "ids": [1, 2, 3]}


@pytest.mark.parametrize(
    ("url", "socket", "target"),
    [
        (URL, SOCKET, [f"{URL}/v1/encode"]),
        (URL, None, [f"{URL}/v1/encode"]),
        (None, SOCKET, ["--unix-socket", SOCKET, "http://localhost/v1/encode"]),
    ],
)
def test_the_request_survives_the_shell(url: str | None, socket: str | None, target: list[str]) -> None:
    """Copied into a shell, the line is the words that curl needs, with the example as JSON."""
    words = shlex.split(example_request(url, socket))
    assert words[: 2 + len(target)] == ["curl", "-s", *target]
    assert json.loads(words[-1]) == {"text": EXAMPLE_TEXT}


def test_it_shows_what_the_default_model_answers(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    """The ids are encoded, not written down."""
    show_banner("always", registry, [URL, f"unix:{SOCKET}"])
    out = capsys.readouterr().out
    answer = json.loads(out.partition("  answer ")[2])
    ids = answer["ids"]
    assert registry.default.ready_tokenizer.spec.max_id >= max(ids)
    assert answer == {"model": registry.default.name, "count": len(ids), "ids": ids}
    assert f"  socket  {SOCKET}\n" in out


def test_it_stays_out_of_pipes_and_waits_for_the_model(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    """`auto` prints to a terminal only, `never` never, and nothing is promised before the default model serves."""
    show_banner("auto", registry, [URL])
    show_banner("never", registry, [URL])
    show_banner("always", Registry(ServiceOptions(), DispatcherOptions()), [URL])
    assert capsys.readouterr().out == ""
