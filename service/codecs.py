"""The three codecs of the native API: JSON, msgpack and octet-stream. Same fields, same results in each.

JSON          text as strings, ids as numbers
msgpack       text as str or bin (UTF-8), ids and offsets as bin: packed little-endian uint32
octet-stream  one document per body (raw UTF-8), or with `batch=true`: uint32 count, count x uint32 byte lengths, then
              the documents; options in the query string; the answer is packed ids, or sections, whose byte lengths the
              header `X-Sidetok-Sections` gives
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import msgpack
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic_core import SchemaValidator, ValidationError, core_schema

from dispatcher.errors import InvalidText
from dispatcher.late_texts import decoded
from dispatcher.request import EncodedDocument
from service.body_bounds import MAX_NODES, MAX_VALUES, MsgpackCounter, check_json, too_many_values
from service.endpoint import Head
from service.errors import BodyTooLarge, InvalidBody, UnsupportedMediaType
from service.id_array import ids_json

JSON = b"application/json"
MSGPACK = b"application/msgpack"
OCTETS = b"application/octet-stream"
CODECS = {JSON: JSON, MSGPACK: MSGPACK, b"application/x-msgpack": MSGPACK, OCTETS: OCTETS}

MAX_DOCUMENTS = 16_384
"""In one request: each costs some kilobytes until the answer is written, however short it is."""
MAX_QUERY_BYTES = 4096
TEXT_OPTIONS = ("model", "lora_name", "cache_salt", "hash_seed")
"""Options that are text also where they look like a number."""
MAX_ACCEPT_BYTES = 256

Fields = dict[str, Any]

_ANY = core_schema.any_schema()
_UTF8 = core_schema.union_schema([core_schema.bytes_schema(), _ANY], mode="left_to_right")
_TEXT = core_schema.union_schema(
    [core_schema.bytes_schema(), core_schema.list_schema(_UTF8), _ANY], mode="left_to_right"
)
_UTF8_BODY = SchemaValidator(
    core_schema.typed_dict_schema({"text": core_schema.typed_dict_field(_TEXT, required=False)}, extra_behavior="allow")
)
"""An object whose `text` is text, or a list of texts, which are given as UTF-8; anything else is what it is."""


def request_codec(head: Head) -> bytes:
    """The codec of the body, by its content type; a missing one means JSON."""
    codec = CODECS.get(head.content_type or JSON)
    if codec is None:
        raise UnsupportedMediaType(
            "Content-Type is application/json, application/msgpack or application/octet-stream, "
            "with the document as raw UTF-8 in the last case."
        )
    return codec


def answer_codec(head: Head) -> bytes:
    """The codec of the answer: what `Accept` names if it names one of ours, else the codec of the request."""
    named = CODECS.get(head.accept) or _first_accepted(head.accept[:MAX_ACCEPT_BYTES]) if head.accept else None
    return named or CODECS.get(head.content_type or JSON) or JSON


@lru_cache(maxsize=256)
def _first_accepted(accept: bytes) -> bytes | None:
    """The first of our codecs in an `Accept` header that names several media types, or gives them parameters."""
    names = (part.partition(b";")[0].strip() for part in accept.lower().split(b","))
    return next((CODECS[name] for name in names if name in CODECS), None)


def read_fields(head: Head, body: bytes, content: str) -> Fields:
    """The fields of a request. `content` names the field that an octet-stream body stands for (`text` or `ids`)."""
    codec = request_codec(head)
    if codec is OCTETS:
        fields = dict(_short(head.query))
        batch = fields.pop("batch", False)
        if not isinstance(batch, bool):
            raise InvalidBody("`batch` is true or false.", "batch")
        fields[content] = frames(body) if batch else body
        return fields
    fields = read_json(body) if codec is JSON else read_msgpack(body)
    if not isinstance(fields, dict):
        raise InvalidBody("The body is an object with named fields.")
    return fields


def read_json(body: bytes) -> Any:
    """Parse JSON. The error says where, never what."""
    check_json(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "UTF-8:" in error.msg:
            raise InvalidText("The body is not UTF-8.") from None
        if "surrogate" in error.msg:
            raise InvalidText(
                f"A string of the body has a lone surrogate (at character {error.pos}); it is no Unicode text."
            ) from None
        raise InvalidBody(f"The body is not JSON: {error.msg} at character {error.pos}.") from None


def read_utf8_json(body: bytes) -> Fields | None:
    """The fields of a JSON body with its `text` as UTF-8: what `read_json` gives otherwise.

    None for a body that is better read in the usual way, or has to be: of ASCII only, or not valid.
    """
    # Constants of Python's are JSON to this parser only.
    if body.isascii() or b"NaN" in body or b"Infinity" in body:
        return None
    check_json(body)
    try:
        fields: Fields = _UTF8_BODY.validate_json(body)
    except ValidationError:
        return None
    # Longer whole numbers are floats to the usual parser.
    is_plain = all(type(value) is not int or -(1 << 63) <= value < 1 << 64 for value in fields.values())
    return fields if is_plain else None


def read_msgpack(body: bytes) -> Any:
    """Parse msgpack; strings are UTF-8."""
    counter = MsgpackCounter()
    most = min(len(body), MAX_VALUES)
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            max_array_len=most,
            max_map_len=min(most, MAX_NODES),
            list_hook=counter.list_hook,
            object_hook=counter.object_hook,
        )
    except UnicodeDecodeError as error:
        raise InvalidText(f"A string of the body is not UTF-8 (at its byte {error.start}).") from None
    except (ValueError, msgpack.UnpackException) as error:
        if len(body) > MAX_NODES and "exceeds max_" in str(error):
            raise too_many_values() from None
        raise InvalidBody(f"The body is not msgpack ({type(error).__name__}).") from None


def _short(query: bytes) -> tuple[tuple[str, Any], ...]:
    """See `query_fields`, whose cache must not hold long queries."""
    if len(query) > MAX_QUERY_BYTES:
        raise InvalidBody(f"The query string is over the limit of {MAX_QUERY_BYTES} bytes.")
    return query_fields(query)


@lru_cache(maxsize=1024)
def query_fields(query: bytes) -> tuple[tuple[str, Any], ...]:
    """The options in a query string, with JSON's types: true, false, numbers, else text."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError:
        raise InvalidBody("The query string is not valid; percent-encode its values as UTF-8.") from None
    return tuple((name, value if name in TEXT_OPTIONS else _typed(value)) for name, value in pairs)


def _typed(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    if value.isdecimal() and value.isascii() and len(value) <= 20 and (number := int(value)) < 1 << 64:
        return number
    return value


def frames(body: bytes) -> tuple[memoryview, ...]:
    """Split a batch body: uint32 count, that many uint32 lengths in bytes, then the documents, end to end."""
    if len(body) < 4:
        raise InvalidBody("A batch body starts with its number of documents as uint32.")
    count = int.from_bytes(body[:4], "little")
    start = 4 + 4 * count
    if start > len(body):
        raise InvalidBody(f"The batch body names {count} documents but ends inside their lengths.")
    check_count(count)
    bounds = start + np.concatenate([[0], np.cumsum(np.frombuffer(body, "<u4", count, 4), dtype=np.int64)])
    if bounds[-1] != len(body):
        raise InvalidBody(f"The lengths of the batch body add up to {bounds[-1]} bytes, but it has {len(body)}.")
    view = memoryview(body)
    return tuple(view[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


def check_count(n_documents: int) -> None:
    """Raise `BodyTooLarge` for more documents than one request may have."""
    if n_documents > MAX_DOCUMENTS:
        raise BodyTooLarge(f"A request has at most {MAX_DOCUMENTS} documents, not {n_documents}; split it.")


def text_of(value: Any, where: str) -> str:
    """One document as text. `where` names the field in the error."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes | memoryview):
        raise InvalidBody(f"`{where}` is text.", where)
    return decoded(value, where)


def ids_of(value: Any, where: str) -> NDArray[np.uint32]:
    """One sequence of ids: a list of integers, or packed little-endian uint32."""
    if isinstance(value, bytes | memoryview):
        if len(value) % 4:
            raise InvalidBody(f"`{where}` is packed uint32, but its {len(value)} bytes are no multiple of 4.", where)
        return np.frombuffer(value, "<u4").astype(np.uint32, copy=False)
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        raise InvalidBody(f"`{where}` is a list of integers.", where)
    if value and (min(value) < 0 or max(value) > 0xFFFFFFFF):
        raise InvalidBody(f"`{where}` has an id outside 0 to 4294967295.", where)
    return np.array(value, np.uint32)


def listed_ids(document: EncodedDocument) -> tuple[bytes, ...]:
    """The ids of a document as a JSON array, in pieces: those that a GPU wrote, if it did."""
    if document.decimals:
        return b"[", *document.decimals, b"]"
    return (ids_json(document.ids),)
