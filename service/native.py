"""The native API: encode, decode and count, in every codec."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
import orjson

from dispatcher.late_texts import LateTexts
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result, Route
from gpu_core.errors import SidetokError
from service.block_hashes import FIELDS, HashOptions, block_hashes, hash_options, packed
from service.codecs import (
    JSON,
    MSGPACK,
    OCTETS,
    Fields,
    answer_codec,
    check_count,
    ids_of,
    listed_ids,
    read_fields,
    read_utf8_json,
    request_codec,
    text_of,
)
from service.endpoint import Answer, Head
from service.errors import InvalidBody, InvalidField, status_of
from service.head import route_of
from service.id_array import array_json
from service.registry import Registry

_BOOLEANS = {
    "add_special_tokens": "add_special_tokens",
    "return_char_offsets": "char_offsets",
    "return_byte_offsets": "byte_offsets",
    "return_token_strings": "token_strings",
    "return_special_tokens_mask": "special_tokens_mask",
}
_EXTRAS = ("char_offsets", "byte_offsets", "token_strings", "special_tokens_mask")
_ENCODE_FIELDS = {*_BOOLEANS, "model", "text", "max_tokens", "truncation_side", "route"}
HASH_FIELDS = {*FIELDS, "cache_salt"}
"""Fields that mean something only together with `return_block_hashes`."""
_DECODE_FIELDS = {"model", "ids", "skip_special_tokens"}
_BYTES = frozenset({bytes, memoryview})
LATE_BYTES = 1 << 16
"""Documents in larger bodies that came as UTF-8, and may be answered by a GPU, become text only if they are not."""


@dataclass(slots=True)
class HashedRequest(EncodeRequest):
    """A request whose answer has hashes of blocks, too."""

    hashes: HashOptions | None = None


class Encode:
    """`POST /v1/encode`: text to ids."""

    count_only = False

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, head: Head, body: bytes) -> EncodeRequest:
        """See `service.endpoint.Endpoint`."""
        may_be_late = len(body) > LATE_BYTES and self._registry.may_use_gpu(route_of(head))
        fields = read_utf8_json(body) if may_be_late and request_codec(head) is JSON else None
        if fields is None:
            fields = read_fields(head, body, "text")
        if "text" not in fields:
            raise InvalidBody("`text` is missing.", "text")
        text = fields.pop("text")
        is_batch = isinstance(text, list | tuple)
        if is_batch:
            check_count(len(text))
        model = self._registry.resolve(_model_name(fields))
        route = _route(fields, head)
        sent = text if is_batch else (text,)
        documents = _documents(sent, is_batch, may_be_late and self._registry.may_use_gpu(route))
        try:
            hashes = self._hash_options(fields)
            options = encode_options(tuple(fields.items()), self.count_only)
            tokenizer = model.ready_tokenizer
        except SidetokError:
            # A text that is no UTF-8 is what is said first, early or late.
            list(documents)
            raise
        request = HashedRequest if hashes is not None else EncodeRequest
        it = request(model.name, tokenizer, documents, options, len(body), is_batch, route)
        it.utf8 = None if any(isinstance(item, str) for item in sent) else sent
        it.lists_ids = not self.count_only and answer_codec(head) is JSON
        if isinstance(it, HashedRequest):
            it.hashes, it.is_slow_to_write = hashes, True
        return it

    def _hash_options(self, fields: Fields) -> HashOptions | None:
        if "return_block_hashes" not in fields:
            return None
        hashes = hash_options(fields, fields.pop("cache_salt", None))
        if hashes is not None and self.count_only:
            raise InvalidField("There are no ids to hash here; /v1/encode has them.", "return_block_hashes")
        return hashes

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, EncodeRequest)
        codec = answer_codec(head)
        return Answer(*_ENCODE_WRITERS[codec](request, result))

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return fail(head, error)


class Count(Encode):
    """`POST /v1/count`: how many ids text has; takes what encode takes."""

    count_only = True


class Decode:
    """`POST /v1/decode`: ids to text."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, head: Head, body: bytes) -> DecodeRequest:
        """See `service.endpoint.Endpoint`."""
        fields = read_fields(head, body, "ids")
        _refuse_unknown(fields, _DECODE_FIELDS)
        if "ids" not in fields:
            raise InvalidBody("`ids` is missing.", "ids")
        ids = fields["ids"]
        skip = fields.get("skip_special_tokens")
        if skip is None:
            skip = True
        if not isinstance(skip, bool):
            raise InvalidBody("`skip_special_tokens` is true or false.", "skip_special_tokens")
        model = self._registry.resolve(_model_name(fields))
        # An empty list is one empty sequence, an empty batch body is an empty batch.
        is_batch = isinstance(ids, tuple) or (isinstance(ids, list) and bool(ids) and not isinstance(ids[0], int))
        if is_batch:
            check_count(len(ids))
        sequences = [ids_of(item, f"ids[{i}]") for i, item in enumerate(ids)] if is_batch else [ids_of(ids, "ids")]
        request = DecodeRequest(model.name, model.ready_tokenizer, sequences, skip, len(body))
        request.is_batch = is_batch
        return request

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        codec = answer_codec(head)
        text: Any = result if request.is_batch else result[0]
        if codec is OCTETS:
            parts = [str(part).encode() for part in result]
            return Answer(batch_body(parts) if request.is_batch else parts[0], OCTETS)
        fields = {"model": request.model, "text": text}
        return Answer(orjson.dumps(fields) if codec is JSON else msgpack.packb(fields), codec)

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return fail(head, error)


def fail(head: Head, error: SidetokError) -> Answer:
    """The error object of OpenAI-style APIs: `{"error": {message, type, param, code}}`, in the codec of the answer."""
    status = status_of(error)
    fields = {
        "error": {
            "message": str(error),
            "type": status.type,
            "param": getattr(error, "param", None),
            "code": status.code,
        }
    }
    codec = answer_codec(head)
    body = msgpack.packb(fields) if codec is MSGPACK else orjson.dumps(fields)
    return Answer(body, MSGPACK if codec is MSGPACK else JSON, status.code)


@lru_cache(maxsize=1024)
def _options(fields: tuple[tuple[str, Any], ...], types: tuple[type, ...], count_only: bool) -> EncodeOptions:
    """Checked options. `types` is part of the key because 1 == True would find the entry of the other."""
    values: Fields = dict(fields)
    _refuse_unknown(values, _ENCODE_FIELDS, frozenset() if count_only else HASH_FIELDS)
    known: Fields = {"count_only": count_only}
    for name, option in _BOOLEANS.items():
        value = values.get(name)
        if value is not None:
            if not isinstance(value, bool):
                raise InvalidBody(f"`{name}` is true or false.", name)
            known[option] = value
    known["max_tokens"] = max_tokens = values.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 0):
        raise InvalidBody("`max_tokens` is a number of ids, 0 or more.", "max_tokens")
    if (side := values.get("truncation_side")) is not None:
        if side not in ("left", "right"):
            raise InvalidBody("`truncation_side` is left or right.", "truncation_side")
        known["truncation_side"] = side
    return EncodeOptions(**known)


def encode_options(fields: tuple[tuple[str, Any], ...], count_only: bool) -> EncodeOptions:
    """Options from request fields; equal sets are checked once."""
    try:
        return _options(fields, tuple(type(value) for _, value in fields), count_only)
    except TypeError:  # a list or an object where a plain value belongs
        _refuse_unknown(dict(fields), _ENCODE_FIELDS, frozenset() if count_only else HASH_FIELDS)
        name = next(name for name, value in fields if isinstance(value, list | dict))
        raise InvalidBody(f"`{name}` is a plain value.", name) from None


def _documents(sent: Sequence[Any], is_batch: bool, may_be_late: bool) -> Sequence[str]:
    """What was sent as texts, or as `LateTexts`. Raises `InvalidBody`, and `InvalidText`, maybe late."""
    name_of = _name_in_batch if is_batch else _name_alone
    if may_be_late and _BYTES.issuperset(map(type, sent)):
        return LateTexts(sent, name_of)
    return [text_of(item, name_of(i)) for i, item in enumerate(sent)]


def _name_alone(_number: int) -> str:
    return "text"


def _name_in_batch(number: int) -> str:
    return f"text[{number}]"


def _model_name(fields: Fields) -> str | None:
    name = fields.pop("model", None)
    if name is not None and not isinstance(name, str):
        raise InvalidBody("`model` is a name.", "model")
    return name


def _route(fields: Fields, head: Head) -> Route:
    """The field, else the header."""
    route = fields.pop("route", None)
    if route is None:
        return route_of(head)
    if route not in ("auto", "cpu", "gpu"):
        raise InvalidBody("`route` is cpu, gpu or auto.", "route")
    known: Route = route
    return known


def _refuse_unknown(fields: Fields, known: set[str], dependent: Set[str] = frozenset()) -> None:
    """A mistyped option would silently change the ids, so the native API refuses what it does not know. `dependent`
    fields are known, too, but the request lacks the one that they belong to.
    """
    for name in fields:
        if name in dependent:
            raise InvalidBody(f"`{name}` means something only together with `return_block_hashes`.", "body")
        if name not in known:
            names = ", ".join(sorted(known | dependent))
            raise InvalidBody(f"There is no such field here; known fields: {names}.", "body")


def _columns(options: EncodeOptions) -> list[str]:
    """What was asked for beside ids and count, by its name in the answer."""
    names = ["truncated"] if options.max_tokens is not None else []
    return names + [name for name in _EXTRAS if getattr(options, name)]


def _fields(
    request: EncodeRequest,
    result: list[EncodedDocument],
    ids: Callable[[EncodedDocument], Any],
    array: Callable[[Any], Any],
    hashes: Callable[[Any], Any],
) -> Fields:
    """The answer as named fields, written by the three functions; lists of values for a batch."""
    columns: Fields = {"count": [document.n_tokens for document in result]}
    if not request.options.count_only:
        columns["ids"] = [ids(document) for document in result]
    for name in _columns(request.options):
        values = [getattr(document, name) for document in result]
        columns[name] = [array(value) if isinstance(value, np.ndarray) else value for value in values]
    columns |= _hash_columns(request, result, hashes)
    if not request.is_batch:
        columns = {name: column[0] for name, column in columns.items()}
    return {"model": request.model, **columns}


def _hash_columns(
    request: EncodeRequest, result: list[EncodedDocument], form: Callable[[Any], Any]
) -> dict[str, list[Any]]:
    """The hashes of each document, in the form that a codec gives them, by their name."""
    if not isinstance(request, HashedRequest) or request.hashes is None:
        return {}
    options = request.hashes
    found = [block_hashes(document.ids, options, request.model) for document in result]
    columns = {"block_hashes": [form(hashes.block_hashes) for hashes in found]}
    if options.scheme == "dynamo":
        columns["sequence_hashes"] = [form(hashes.sequence_hashes or []) for hashes in found]
    return columns


def _write_json(request: EncodeRequest, result: list[EncodedDocument]) -> tuple[bytes, bytes]:
    fields = _fields(
        request,
        result,
        lambda document: orjson.Fragment(b"".join(listed_ids(document))),
        lambda array: orjson.Fragment(array_json(array)),
        list,
    )
    return orjson.dumps(fields), JSON


def _write_msgpack(request: EncodeRequest, result: list[EncodedDocument]) -> tuple[bytes, bytes]:
    fields = _fields(request, result, lambda document: document.ids, lambda array: array.tobytes(), packed)
    return msgpack.packb(fields), MSGPACK


def _write_octets(
    request: EncodeRequest, result: list[EncodedDocument]
) -> tuple[bytes, bytes, int, list[tuple[bytes, bytes]]]:
    """Ids alone, or sections end to end: counts (batch and count only), ids, then what else was asked for."""
    options = request.options
    sections: dict[str, bytes] = {}
    if request.is_batch or options.count_only:
        sections["counts"] = np.array([document.n_tokens for document in result], "<u4").tobytes()
    if not options.count_only:
        sections["ids"] = result[0].ids if len(result) == 1 else b"".join([document.ids for document in result])
    for name in _columns(options):
        sections[name] = _section(name, [getattr(document, name) for document in result])
    sections |= {name: b"".join(column) for name, column in _hash_columns(request, result, packed).items()}
    if len(sections) == 1:
        return next(iter(sections.values())), OCTETS, 200, []
    sizes = ",".join(f"{name}={len(section)}" for name, section in sections.items())
    return b"".join(sections.values()), OCTETS, 200, [(b"x-sidetok-sections", sizes.encode())]


def _section(name: str, values: list[Any]) -> bytes:
    """One section for all documents: packed arrays, one byte for each `truncated`, JSON for `token_strings`."""
    if name == "truncated":
        return bytes(values)
    if name == "token_strings":
        return orjson.dumps(values)
    return b"".join([value.tobytes() for value in values])


def batch_body(parts: list[bytes]) -> bytes:
    """Documents in one octet-stream body: uint32 count, uint32 lengths, then the documents."""
    return np.array([len(parts), *map(len, parts)], "<u4").tobytes() + b"".join(parts)


_ENCODE_WRITERS: dict[bytes, Callable[..., Any]] = {JSON: _write_json, MSGPACK: _write_msgpack, OCTETS: _write_octets}
