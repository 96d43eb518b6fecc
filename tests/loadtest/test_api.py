"""Bodies of requests and ids of answers, by API and codec."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import numpy as np
import pytest

from loadtest.api import Api, make_api
from loadtest.errors import BadOption, UnreadableAnswer
from loadtest.plan import BATCH, CONVERSATION, SINGLE
from loadtest.wire import Answer

TEXT = "Zoë \U0001f44b"
PARTS = [memoryview(text.encode()) for text in (TEXT, "second")]
PACKED = np.array([1, 2, 3], "<u4").tobytes()


def body(api: Api, kind: int, documents: list[memoryview] = PARTS) -> bytes:
    """A body in one piece."""
    return b"".join(api.body(kind, documents))


def answered(data: Any, sections: str = "") -> Answer:
    """An answer with this body."""
    return Answer(200, len(data), sections, [data[:5], data[5:]])


def listed(ids: list[Any]) -> list[list[int]]:
    """Ids as lists."""
    return [document.tolist() for document in ids]


def test_octet_stream() -> None:
    """Text as it is, a batch behind its lengths; ids packed, those of a batch behind their counts."""
    api = make_api("native", "octet-stream", "a/b")
    assert (api.path, api.batch_path) == ("/v1/encode?model=a%2Fb", "/v1/encode?model=a%2Fb&batch=true")
    assert make_api("native", "octet-stream", "").batch_path == "/v1/encode?batch=true"
    assert body(api, SINGLE, PARTS[:1]).decode() == TEXT
    assert body(api, CONVERSATION).decode() == TEXT + "second"
    lengths = np.array([2, len(TEXT.encode()), 6], "<u4").tobytes()
    assert body(api, BATCH) == lengths + TEXT.encode() + b"second"
    assert listed(api.ids(SINGLE, answered(PACKED))) == [[1, 2, 3]]
    counts = np.array([1, 2], "<u4").tobytes()
    assert listed(api.ids(BATCH, answered(counts + PACKED, "counts=8,ids=12"))) == [[1], [2, 3]]


def test_msgpack() -> None:
    """Text as bin; ids as packed bin."""
    api = make_api("native", "msgpack", "m")
    assert msgpack.unpackb(body(api, SINGLE, PARTS[:1])) == {"text": TEXT.encode(), "model": "m"}
    assert msgpack.unpackb(body(api, BATCH)) == {"text": [TEXT.encode(), b"second"], "model": "m"}
    assert listed(api.ids(SINGLE, answered(msgpack.packb({"ids": PACKED})))) == [[1, 2, 3]]
    assert listed(api.ids(BATCH, answered(msgpack.packb({"ids": [PACKED, b""]})))) == [[1, 2, 3], []]


def test_json() -> None:
    """Strings and lists of numbers."""
    api = make_api("native", "json", "")
    assert json.loads(body(api, SINGLE, PARTS[:1])) == {"text": TEXT}
    assert json.loads(body(api, BATCH)) == {"text": [TEXT, "second"]}
    assert listed(api.ids(SINGLE, answered(b'{"ids": [1, 2]}'))) == [[1, 2]]
    assert listed(api.ids(BATCH, answered(b'{"ids": [[1, 2], []]}'))) == [[1, 2], []]


def test_vllm() -> None:
    """`prompt` in, `tokens` out."""
    api = make_api("vllm", "octet-stream", "m")
    assert (api.path, api.content_type) == ("/tokenize", "application/json")
    assert json.loads(body(api, CONVERSATION)) == {"model": "m", "prompt": TEXT + "second"}
    assert listed(api.ids(SINGLE, answered(b'{"count": 1, "tokens": [7]}'))) == [[7]]


def test_vllm_render() -> None:
    """The pieces of a conversation are messages in turn; other text is one message. `token_ids` come back."""
    api = make_api("vllm-render", "json", "m")
    assert not api.ids_are_of_text
    assert json.loads(body(api, CONVERSATION))["messages"] == [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": "second"},
    ]
    assert json.loads(body(api, SINGLE, PARTS[:1]))["messages"] == [{"role": "user", "content": TEXT}]
    assert listed(api.ids(SINGLE, answered(b'{"token_ids": [7, 8]}'))) == [[7, 8]]


@pytest.mark.parametrize(("api", "codec"), [("native", "json"), ("vllm", "json"), ("vllm-render", "json")])
def test_text_that_is_not_utf8_stays_wrong(api: str, codec: str) -> None:
    """The generator does not repair what is wrong on purpose."""
    data = body(make_api(api, codec, "m"), SINGLE, [memoryview(b"a\xffb")])
    assert b"a\xffb" in data
    with pytest.raises(UnicodeDecodeError):
        data.decode()


def test_a_codec_that_an_api_does_not_speak() -> None:
    """Only the native API has msgpack."""
    with pytest.raises(BadOption, match="msgpack"):
        make_api("vllm", "msgpack", "")


@pytest.mark.parametrize(
    ("codec", "kind", "data", "sections"),
    [
        ("octet-stream", SINGLE, b"abc", ""),
        ("octet-stream", BATCH, PACKED, ""),
        ("octet-stream", BATCH, PACKED, "counts=4,ids=4"),
        ("octet-stream", BATCH, PACKED, "counts=x"),
        ("octet-stream", BATCH, PACKED, "counts=4,ids=8"),
        ("msgpack", SINGLE, b"\xc1", ""),
        ("msgpack", SINGLE, msgpack.packb({"ids": [1]}), ""),
        ("msgpack", BATCH, msgpack.packb({"ids": b"abcd"}), ""),
        ("msgpack", SINGLE, msgpack.packb([1]), ""),
        ("json", SINGLE, b"{", ""),
        ("json", SINGLE, b'{"count": 1}', ""),
        ("json", SINGLE, b'{"ids": ["a"]}', ""),
        ("json", SINGLE, b'{"ids": [-1]}', ""),
        ("json", BATCH, b'{"ids": 7}', ""),
    ],
)
def test_answers_without_ids(codec: str, kind: int, data: bytes, sections: str) -> None:
    """An answer whose ids cannot be read is an error of its own, and never an empty list."""
    with pytest.raises(UnreadableAnswer):
        make_api("native", codec, "").ids(kind, answered(data, sections))
