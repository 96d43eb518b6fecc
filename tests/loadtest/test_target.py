"""Addresses of targets, and the questions that are asked outside the load."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.errors import BadOption, TargetUnreachable
from loadtest.target import parse_target
from tests.loadtest.fake_server import faking, http


@pytest.mark.parametrize(
    ("text", "shown", "authority"),
    [
        ("http://127.0.0.1:8400", "http://127.0.0.1:8400", "127.0.0.1:8400"),
        ("http://127.0.0.1", "http://127.0.0.1:80", "127.0.0.1:80"),
        ("http://[::1]:9/", "http://[::1]:9", "[::1]:9"),
        ("unix:/run/s.sock", "unix:/run/s.sock", "localhost"),
    ],
)
def test_addresses(text: str, shown: str, authority: str) -> None:
    """An address is read, and shown as it can be given again."""
    target = parse_target(text)
    assert (str(target), target.authority) == (shown, authority)
    assert parse_target(str(target)) == target


@pytest.mark.parametrize("text", ["", "127.0.0.1:8400", "https://x", "http://", "http://h/path", "unix:", "http://h:x"])
def test_what_is_no_address(text: str) -> None:
    """Anything else is refused before the run."""
    with pytest.raises(BadOption, match="--target"):
        parse_target(text)


def test_questions() -> None:
    """A GET brings status and body."""
    with faking(lambda number, body: http(418, b"short and stout")) as server:
        assert parse_target(f"http://127.0.0.1:{server.port}").get("/x") == (418, b"short and stout")


def test_nobody_answers(tmp_path: Path) -> None:
    """No answer, and half an answer, say which target it is."""
    with pytest.raises(TargetUnreachable, match="unix:"):
        parse_target(f"unix:{tmp_path / 'none'}").get("/x")
    with faking(lambda number, body: b"") as server, pytest.raises(TargetUnreachable, match=str(server.port)):
        parse_target(f"http://127.0.0.1:{server.port}").get("/x")
