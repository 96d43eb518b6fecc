"""Bounds on the number of values: what is counted, what stands inside strings, and what is refused before parsing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack
import orjson
import pytest

from service.body_bounds import MAX_NODES, MAX_VALUES, PIECE_BYTES, UNCOUNTED_BYTES, check_json
from service.codecs import read_json, read_msgpack
from service.dialects.body import read_json as read_dialect_json
from service.errors import BodyTooLarge

READERS = (read_json, read_dialect_json)


def is_refused(read: Callable[[bytes], Any], body: bytes) -> bool:
    """Whether `read` finds too many values."""
    try:
        read(body)
    except BodyTooLarge:
        return True
    return False


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("item", "most"),
    [(b"7", MAX_VALUES), (b"[]", MAX_NODES), (b"{}", MAX_NODES), (b'{"k":0}', MAX_NODES // 2), (b'""', MAX_VALUES)],
)
def test_lists_of_many_items(read: Callable[[bytes], Any], item: bytes, most: int) -> None:
    """As many as the bound allows are read, one and a half times as many are refused."""
    fits = most - 3
    assert len(read(b'{"ids":[' + b",".join([item] * fits) + b"]}")["ids"]) == fits
    assert is_refused(read, b'{"ids":[' + b",".join([item] * (most * 3 // 2)) + b"]}")


@pytest.mark.parametrize(
    ("densest", "per_node"),
    [
        (b"[" * 900 + b"]" * 900, 2),
        (b"[],", 3),
        (b"{},", 3),
        (b'{"":0},', 3.5),
        (b'{"":' * 900 + b"0" + b"}" * 900, 2.5),
    ],
)
def test_what_is_not_counted_has_not_too_many(densest: bytes, per_node: float) -> None:
    """However densely they stand, a body that is not looked through has no more nodes than one may have."""
    n_nodes = len([byte for byte in densest if byte in b"[{:"])
    assert len(densest) >= n_nodes * per_node
    assert n_nodes / len(densest) * UNCOUNTED_BYTES + 8_000 < MAX_NODES


def test_many_fields_are_refused() -> None:
    """Names of fields count, since each costs as much as a list."""
    assert is_refused(read_json, b"{" + b",".join(b'"%d":0' % i for i in range(MAX_NODES + 1)) + b"}")


@pytest.mark.parametrize("text", ["[]{}:,", '"[,', "\\", '\\"[', "\\\\[", 'a\\\\\\"{:'])
@pytest.mark.parametrize("shift", range(3))
def test_text_may_hold_anything(text: str, shift: int) -> None:
    """Brackets, commas, quotes and backslashes inside strings are text, wherever a piece ends."""
    fields = {"text": "x" * shift + text * (3 * MAX_VALUES // len(text) + PIECE_BYTES), "model": "m"}
    assert read_json(orjson.dumps(fields)) == fields


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_the_values(seed: int) -> None:
    """A body of strings full of escapes with as many lists as allowed passes, with a few more it is refused."""
    rng = random.Random(seed)
    texts = ["".join(rng.choices('\\"[]{},:x\n\u00e9', k=rng.randrange(12))) for _ in range(2_000)]
    lists = [[rng.choice(texts)] for _ in range(MAX_NODES - 1)]
    body = orjson.dumps(lists)
    check_json(body)
    with pytest.raises(BodyTooLarge):
        check_json(orjson.dumps([*lists, [], []]))


@pytest.mark.parametrize(
    "body", [b"[" * 5_000_000, b'{"text":["' + b"]," * 9_000_000, b"\\" * 5_000_000, b'"' * 5_000_001]
)
def test_what_is_no_json_is_looked_through_too(body: bytes) -> None:
    """Garbage ends in an answer of either kind, not in an error of the count."""
    is_refused(check_json, body)


@pytest.mark.parametrize("value", [[], {}, [[]]])
def test_msgpack_with_many_lists_or_maps(value: Any) -> None:
    """Nested lists and maps are counted while they are read."""
    assert is_refused(read_msgpack, msgpack.packb({"text": [value] * (MAX_NODES + 1)}))
    assert read_msgpack(msgpack.packb({"text": [value] * 16_384}))


def test_msgpack_with_many_items() -> None:
    """One list over the bound, and many lists that are over it together."""
    assert len(read_msgpack(msgpack.packb({"ids": [7] * MAX_VALUES}))["ids"]) == MAX_VALUES
    assert is_refused(read_msgpack, msgpack.packb({"ids": [7] * (MAX_VALUES + 1)}))
    assert is_refused(read_msgpack, msgpack.packb({"ids": [[7] * 1_000] * (MAX_VALUES // 1_000 + 1)}))
    assert is_refused(read_msgpack, msgpack.packb({str(i): 0 for i in range(MAX_NODES + 1)}))
