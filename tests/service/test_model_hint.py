"""The guess at the model of a request: found where clients write it, never in the text."""

from __future__ import annotations

import json

import msgpack
import pytest

from service.head import read_head
from service.model_hint import LOOK_BYTES, named_model

NAME = "a-model/v1"


def hint(body: bytes, content_type: str = "application/json", query: bytes = b"") -> str:
    """The guess for a request."""
    return named_model(read_head("/v1/encode", query, [(b"content-type", content_type.encode())]), body)


@pytest.mark.parametrize("n", [0, 100, 100_000])
def test_json_at_either_end(n: int) -> None:
    """Before or behind the text, however long that is, with white space or without."""
    text = "x" * n
    for fields in ({"model": NAME, "text": text}, {"text": text, "model": NAME}):
        assert hint(json.dumps(fields).encode()) == NAME
        assert hint(json.dumps(fields, separators=(",", ":")).encode()) == NAME


@pytest.mark.parametrize("name", [NAME, "n" * 40, "\u6771\u4eac"])
def test_msgpack_and_queries(name: str) -> None:
    """Packed names of any length, and the query of raw bodies."""
    for fields in ({"model": name, "text": "x"}, {"text": "x" * 9000, "model": name}):
        assert hint(msgpack.packb(fields), "application/msgpack") == name
    assert hint(b"\xff" * 100, "application/octet-stream", b"batch=true&model=other&x=1") == "other"


def test_text_is_not_taken_for_a_name() -> None:
    """JSON inside a text is escaped; what stands in the middle of a long body is not looked at; nothing is nothing."""
    assert hint(json.dumps({"text": json.dumps({"model": "trap"})}).encode()) == ""
    assert hint(b"x" * LOOK_BYTES + b'"model": "trap"' + b"x" * LOOK_BYTES) == ""
    assert hint(b"") == hint(b"\xa5model", "application/msgpack") == hint(b'{"model": 1}') == ""
