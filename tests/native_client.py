"""A client of the native API: the same request in each codec, and each answer as the same fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgpack
import numpy as np
import orjson

from service.native import batch_body

JSON, MSGPACK, OCTETS = "application/json", "application/msgpack", "application/octet-stream"
CODECS = (JSON, MSGPACK, OCTETS)

Text = str | list[str]
Ids = list[int] | list[list[int]]


def write_request(codec: str, content: str, value: Any, options: Mapping[str, Any]) -> tuple[bytes, str]:
    """Body and query of a request; `content` is `text` or `ids`."""
    if codec == JSON:
        return orjson.dumps({content: value, **options}), ""
    if codec == MSGPACK:
        packed: bytes = msgpack.packb({content: _packed(value) if content == "ids" else value, **options})
        return packed, ""
    query = {name: str(v).lower() if isinstance(v, bool) else v for name, v in options.items() if v is not None}
    if isinstance(value, list) and (content == "text" or (value and isinstance(value[0], list))):
        return batch_body([_raw(item) for item in value]), urlencode({**query, "batch": "true"})
    return _raw(value), urlencode(query)


def read_encoded(codec: str, body: bytes, sections: str | None, is_batch: bool, count_only: bool = False) -> Any:
    """An answer of encode or count as fields with plain values. `sections` is the header `X-Sidetok-Sections`."""
    if codec == OCTETS:
        return _read_sections(body, sections, is_batch, count_only)
    fields = orjson.loads(body) if codec == JSON else msgpack.unpackb(body)
    fields.pop("model")
    if codec == MSGPACK:
        for name, value in fields.items():
            fields[name] = [_unpacked(name, item) for item in value] if is_batch else _unpacked(name, value)
    return fields


def read_decoded(codec: str, body: bytes, is_batch: bool) -> str | list[str]:
    """The text of an answer of decode."""
    if codec == OCTETS:
        return [str(part, "utf-8") for part in _frames(body)] if is_batch else body.decode()
    fields = orjson.loads(body) if codec == JSON else msgpack.unpackb(body)
    text: str | list[str] = fields["text"]
    return text


def _raw(value: str | list[int]) -> bytes:
    return value.encode() if isinstance(value, str) else np.array(value, "<u4").tobytes()


def _packed(value: Ids) -> Any:
    rows = [_raw(item) for item in value if isinstance(item, list)]
    return rows or _raw([item for item in value if isinstance(item, int)])


def _unpacked(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    if name == "special_tokens_mask":
        return list(value)
    array = np.frombuffer(value, "<u4")
    return (array.reshape(-1, 2) if name.endswith("offsets") else array).tolist()


def _frames(body: bytes) -> list[bytes]:
    count = int.from_bytes(body[:4], "little")
    parts, start = [], 4 + 4 * count
    for length in np.frombuffer(body, "<u4", count, 4).tolist():
        parts.append(body[start : start + length])
        start += length
    assert start == len(body)
    return parts


def _read_sections(body: bytes, sections: str | None, is_batch: bool, count_only: bool) -> dict[str, Any]:
    """Sections lie end to end; those of a batch are cut by the counts of its documents."""
    sizes = dict(item.split("=") for item in sections.split(",")) if sections else {}
    if not sizes:
        sizes = {"counts" if count_only else "ids": str(len(body))}
    parts, start = {}, 0
    for name, size in sizes.items():
        parts[name] = body[start : start + int(size)]
        start += int(size)
    assert start == len(body)
    counts = np.frombuffer(parts.pop("counts"), "<u4").tolist() if "counts" in parts else [len(parts["ids"]) // 4]
    fields: dict[str, Any] = {"count": counts}
    for name, part in parts.items():
        fields[name] = _column(name, part, counts)
    return fields if is_batch else {name: column[0] for name, column in fields.items()}


def _column(name: str, part: bytes, counts: list[int]) -> list[Any]:
    if name == "truncated":
        return [byte == 1 for byte in part]
    if name == "token_strings":
        strings: list[Any] = orjson.loads(part)
        return strings
    width = {"ids": 4, "special_tokens_mask": 1}.get(name, 8)
    column, start = [], 0
    for count in counts:
        column.append(_unpacked(name, part[start : start + width * count]))
        start += width * count
    assert start == len(part)
    return column
