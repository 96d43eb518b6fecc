"""Hashes of blocks: the vectors of Dynamo's released binary, and canonical CBOR written out by hand."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest

from service.block_hashes import BlockHashes, HashOptions, block_hashes, hash_options, hashes_json, packed
from service.errors import InvalidField

IDS = np.arange(1, 65, dtype="<u4").tobytes()


def dynamo(**options: Any) -> BlockHashes:
    """Of the ids 1 to 64 in blocks of 16."""
    return block_hashes(IDS, HashOptions("dynamo", 16, **options), "m")


def signed(values: Any) -> list[int]:
    """As they are answered."""
    assert all(isinstance(value, int) and -(1 << 63) <= value < 1 << 63 for value in values)
    return list(values)


def unsigned(values: Any) -> list[int]:
    """As the vectors are written."""
    return [value % (1 << 64) for value in signed(values)]


def test_dynamo_blocks_and_chain() -> None:
    """Blocks stand for themselves; the chain joins them."""
    found = dynamo()
    assert unsigned(found.block_hashes) == [
        0xEA06FC71A5EE6E88, 0x1FBF39BD106BE0B5, 0xA8562FE663B7A097, 0x4BAD57D34048B86A,
    ]  # fmt: skip
    assert unsigned(found.sequence_hashes) == [
        0xEA06FC71A5EE6E88, 0xAD01835A37DD294C, 0x0D55E56C2BCCBD1A, 0x445502A8048D6688,
    ]  # fmt: skip
    assert found.n_ids == 64
    assert {value < 0 for value in signed(found.block_hashes)} == {True, False}


def test_dynamo_names() -> None:
    """A LoRA's name and a salt change every hash."""
    assert unsigned(dynamo(lora_name="my-lora").block_hashes)[0] == 0x3990F1B14309D7E6
    assert unsigned(dynamo(cache_salt="tenant").block_hashes)[0] == 0x2C884DC6A4AFA021


@pytest.mark.parametrize("n", [0, 15, 16, 17, 31, 32, 33])
def test_only_full_blocks(n: int) -> None:
    """The rest of the ids has no hash, but is counted."""
    ids = IDS[: 4 * n]
    for scheme in ("dynamo", "vllm", "llm-d"):
        found = block_hashes(ids, HashOptions(scheme, 16), "m")
        assert len(found.block_hashes) == n // 16
        assert found.n_ids == n


def test_vllm() -> None:
    """SHA-256 over CBOR, each block behind its parent; ids in the shortest form."""
    ids = np.array([1, 23, 24, 256, 65536, 4294967295], "<u4").tobytes()
    root = hashlib.sha256(b"\x6evllm-none-hash").digest()
    first = hashlib.sha256(b"\x83\x58\x20" + root + bytes.fromhex("83 01 17 1818 f6")).digest()
    second = hashlib.sha256(b"\x83\x58\x20" + first + bytes.fromhex("83 190100 1a00010000 1affffffff f6")).digest()
    assert block_hashes(ids, HashOptions("vllm", 3), "m").block_hashes == [first.hex(), second.hex()]
    seeded = hashlib.sha256(b"\x62" + b"42").digest()
    first = hashlib.sha256(b"\x83\x58\x20" + seeded + bytes.fromhex("83 01 17 1818 82 616c 6173")).digest()
    options = HashOptions("vllm", 3, lora_name="l", cache_salt="s", seed="42")
    found = block_hashes(ids, options, "m").block_hashes
    second = hashlib.sha256(b"\x83\x58\x20" + first + bytes.fromhex("83 190100 1a00010000 1affffffff 81 616c")).digest()
    assert found == [first.hex(), second.hex()]


def cbor(value: int) -> bytes:
    """A number in canonical CBOR, the slow way."""
    for limit, code, size in ((24, None, 0), (1 << 8, 24, 1), (1 << 16, 25, 2), (1 << 32, 26, 4)):
        if value < limit:
            return bytes([value]) if code is None else bytes([code]) + value.to_bytes(size, "big")
    raise AssertionError(value)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 23, 24, 300])
def test_cbor_of_blocks(size: int) -> None:
    """Ids on both sides of every limit, in blocks of every size, as one by one."""
    edges = [0, 1, 23, 24, 25, 255, 256, 257, 65535, 65536, 65537, (1 << 32) - 1]
    ids = random.Random(size).choices(edges, k=3 * size + size // 2)
    found = block_hashes(np.array(ids, "<u4").tobytes(), HashOptions("vllm", size), "m").block_hashes
    parent = hashlib.sha256(b"\x6evllm-none-hash").digest()
    head = bytes([0x80 | size]) if size < 24 else b"\x98" + bytes([size]) if size < 256 else b"\x99\x01\x2c"
    for i in range(3):
        block = b"".join(map(cbor, ids[i * size : (i + 1) * size]))
        parent = hashlib.sha256(b"\x83\x58\x20" + parent + head + block + b"\xf6").digest()
        assert found[i] == parent.hex()
    assert len(found) == 3


def fnv(data: bytes) -> int:
    """FNV-64a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def test_llm_d() -> None:
    """FNV-64a over CBOR, from the seed and the model's name."""
    assert fnv(b"a") == 0xAF63DC4C8601EC8C
    root = fnv(b"\x83\x1b" + fnv(b"").to_bytes(8, "big") + b"\xf6\x61m")
    first = fnv(b"\x83\x1b" + root.to_bytes(8, "big") + b"\x82\x01\x02\xf6")
    second = fnv(b"\x83\x1b" + first.to_bytes(8, "big") + b"\x82\x03\x04\xf6")
    assert unsigned(block_hashes(IDS[:16], HashOptions("llm-d", 2), "m").block_hashes) == [first, second]
    assert block_hashes(IDS, HashOptions("llm-d", 2, seed="x"), "m") != block_hashes(IDS, HashOptions("llm-d", 2), "m")
    assert block_hashes(IDS, HashOptions("llm-d", 2), "n") != block_hashes(IDS, HashOptions("llm-d", 2), "m")


def test_fields() -> None:
    """The fields are taken out of the request; a scheme has its own block size."""
    fields = {"return_block_hashes": "vllm", "hash_seed": "0", "text": "a"}
    assert hash_options(fields, "salt") == HashOptions("vllm", 16, None, "salt", "0")
    assert fields == {"text": "a"}
    assert hash_options({"return_block_hashes": True}) == HashOptions("dynamo", 128)
    for nothing in ({}, {"return_block_hashes": False}, {"return_block_hashes": None, "block_size": 7}):
        assert hash_options(nothing) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"return_block_hashes": "sglang"},
        {"return_block_hashes": 1.5},
        {"return_block_hashes": []},
        {"return_block_hashes": True, "block_size": 0},
        {"return_block_hashes": True, "block_size": True},
        {"return_block_hashes": True, "block_size": 1 << 17},
        {"return_block_hashes": True, "lora_name": 5},
        {"return_block_hashes": True, "lora_name": "x" * 1025},
        {"return_block_hashes": "llm-d", "lora_name": "x"},
        {"return_block_hashes": "vllm", "hash_seed": "\ud800"},
    ],
)
def test_what_is_refused(fields: dict[str, Any]) -> None:
    """A scheme that there is not, a size or a name out of bounds."""
    with pytest.raises(InvalidField):
        hash_options(fields)


def test_json() -> None:
    """What `/select` takes instead of ids; schemes that are chains have one list."""
    assert hashes_json(BlockHashes([-1], [2], 130)) == b'"block_hashes":[-1],"sequence_hashes":[2],"isl_tokens":130'
    assert hashes_json(BlockHashes(["ab"], None, 16)) == b'"block_hashes":["ab"],"isl_tokens":16'


def test_packed() -> None:
    """Numbers as little-endian int64, digests as they are."""
    assert packed([-1, 258]) == b"\xff" * 8 + b"\2\1" + bytes(6)
    assert packed(["00ff", "10"]) == b"\0\xff\x10"
