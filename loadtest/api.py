"""What is asked and what comes back, by API and codec: bodies of requests, and the ids in answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import msgpack
import numpy as np
import orjson
from numpy.typing import NDArray

from loadtest.errors import BadOption, UnreadableAnswer
from loadtest.plan import BATCH, CONVERSATION
from loadtest.wire import Answer, Buffer

Ids = NDArray[np.uint32]
ROLES = ("user", "assistant")


class Api(Protocol):
    """One way to ask for ids."""

    path: str
    batch_path: str
    content_type: str
    ids_are_of_text: bool
    """Whether the ids are those of the text alone, so that the reference can tell what is right."""
    wants_messages: bool
    """Whether the pieces of a conversation matter; otherwise it is one text."""

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """The body of a request for documents of UTF-8; the pieces of a conversation lie end to end."""
        ...

    def ids(self, kind: int, answer: Answer) -> list[Ids]:
        """The ids of each document. Raises `UnreadableAnswer`."""
        ...


def make_api(api: str, codec: str, model: str) -> Api:
    """The API by the names of the options. Raises `BadOption`."""
    if api == "native":
        native: dict[str, Callable[[str], Api]] = {
            "octet-stream": NativeOctets, "msgpack": NativeMsgpack, "json": NativeJson,
        }  # fmt: skip
        return native[codec](model)
    if codec not in ("octet-stream", "json"):
        raise BadOption(f"--api {api} speaks JSON, not {codec}")
    return VllmTokenize(model) if api == "vllm" else VllmRender(model)


class NativeOctets:
    """`/v1/encode` with text and ids as they are."""

    content_type = "application/octet-stream"
    ids_are_of_text = True
    wants_messages = False

    def __init__(self, model: str) -> None:
        self.path = "/v1/encode" + (f"?model={quote(model, safe='')}" if model else "")
        self.batch_path = self.path + ("&" if model else "?") + "batch=true"

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """The text itself; a batch after the lengths of its documents."""
        if kind != BATCH:
            return [_joined(documents)]
        lengths = np.array([len(documents), *map(len, documents)], "<u4").tobytes()
        return [lengths + b"".join(documents)]

    def ids(self, kind: int, answer: Answer) -> list[Ids]:
        """Packed ids; those of a batch lie end to end behind their counts."""
        body = b"".join(answer.body)
        if kind != BATCH:
            return [_packed(body)]
        sections = _sections(answer.sections)
        if list(sections) != ["counts", "ids"] or sum(sections.values()) != len(body):
            raise UnreadableAnswer(f"sections {answer.sections!r} in an answer of {len(body)} bytes")
        counts = _packed(body[: sections["counts"]])
        ids = _packed(body[sections["counts"] :])
        if int(counts.sum()) != len(ids):
            raise UnreadableAnswer(f"counts of {int(counts.sum())} ids for {len(ids)}")
        return np.split(ids, np.cumsum(counts)[:-1])


class _NativeFields:
    """`/v1/encode` with text and model as fields of one value."""

    ids_are_of_text = True
    wants_messages = False

    def __init__(self, model: str) -> None:
        self.path = self.batch_path = "/v1/encode"
        self._fields = {"model": model} if model else {}


class NativeMsgpack(_NativeFields):
    """`/v1/encode` in msgpack: text as bin, ids as packed bin."""

    content_type = "application/msgpack"

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """One map."""
        text = [bytes(document) for document in documents] if kind == BATCH else bytes(_joined(documents))
        return [msgpack.packb({"text": text, **self._fields})]

    def ids(self, kind: int, answer: Answer) -> list[Ids]:
        """One bin, or a list of them."""
        try:
            ids = msgpack.unpackb(b"".join(answer.body))["ids"]
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            raise UnreadableAnswer(f"no ids in an answer of msgpack ({type(error).__name__})") from error
        return [_packed(part) for part in _of_each(kind, ids)]


class NativeJson(_NativeFields):
    """`/v1/encode` in JSON."""

    content_type = "application/json"

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """One object."""
        if kind == BATCH:
            return [orjson.dumps({"text": [str(document, "utf-8") for document in documents], **self._fields})]
        return _json_around("text", _joined(documents), self._fields)

    def ids(self, kind: int, answer: Answer) -> list[Ids]:
        """One list, or a list of them."""
        return [_listed(part) for part in _of_each(kind, _field(answer, "ids"))]


class VllmTokenize:
    """vLLM's `/tokenize` of a prompt."""

    content_type = "application/json"
    ids_are_of_text = True
    wants_messages = False

    def __init__(self, model: str) -> None:
        self.path = self.batch_path = "/tokenize"
        self._fields = {"model": model} if model else {}

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """One prompt."""
        return _json_around("prompt", _joined(documents), self._fields)

    def ids(self, kind: int, answer: Answer) -> list[Ids]:
        """`tokens`."""
        return [_listed(_field(answer, "tokens"))]


class VllmRender:
    """vLLM's render of a chat completion; text that is no conversation is one message of the user."""

    content_type = "application/json"
    ids_are_of_text = False
    wants_messages = True

    def __init__(self, model: str) -> None:
        self.path = self.batch_path = "/v1/chat/completions/render"
        self._fields = {"model": model} if model else {}

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """Messages of user and assistant in turn."""
        pieces = documents if kind == CONVERSATION else [_joined(documents)]
        try:
            messages = [{"role": ROLES[k % 2], "content": str(piece, "utf-8")} for k, piece in enumerate(pieces)]
        except UnicodeDecodeError:
            return [b'{"messages": [{"role": "user", "content": "', _joined(documents), b'"}]}']
        return [orjson.dumps({**self._fields, "messages": messages})]

    def ids(self, kind: int, answer: Answer) -> list[Ids]:
        """`token_ids`."""
        return [_listed(_field(answer, "token_ids"))]


def _joined(documents: Sequence[memoryview]) -> memoryview:
    """The text of pieces that lie end to end in one buffer."""
    return documents[0] if len(documents) == 1 else memoryview(b"".join(documents))


def _json_around(name: str, text: memoryview, fields: dict[str, str]) -> list[Buffer]:
    """A JSON object with a text and other fields; text that is not UTF-8 stands in it as it is."""
    try:
        return [orjson.dumps({**fields, name: str(text, "utf-8")})]
    except UnicodeDecodeError:
        head = "".join(f"{json.dumps(key)}: {json.dumps(value)}, " for key, value in fields.items())
        return [f'{{{head}"{name}": "'.encode(), text, b'"}']


def _sections(header: str) -> dict[str, int]:
    """Names and lengths of the parts of a body, in their order; none for a header that says something else."""
    parts = [part.partition("=") for part in header.split(",")]
    if not all(size.isascii() and size.isdigit() for _, _, size in parts):
        return {}
    return {name: int(size) for name, _, size in parts}


def _field(answer: Answer, name: str) -> object:
    try:
        value: object = orjson.loads(b"".join(answer.body))[name]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableAnswer(f"no {name} in an answer of JSON ({type(error).__name__})") from error
    return value


def _listed(ids: object) -> Ids:
    try:
        return np.array(ids, dtype=np.uint32).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableAnswer(f"ids that are no list of numbers ({type(error).__name__})") from error


def _of_each(kind: int, ids: object) -> list[Any]:
    """The ids of each document of an answer."""
    if kind != BATCH:
        return [ids]
    if not isinstance(ids, list):
        raise UnreadableAnswer("no list of ids for each document")
    return ids


def _packed(data: object) -> Ids:
    if not isinstance(data, bytes) or len(data) % 4:
        raise UnreadableAnswer("ids that are not packed numbers of 32 bits")
    return np.frombuffer(data, "<u4")
