"""Hashes of blocks of ids, as routers and engines compute them for their prefix caches.

dynamo  XXH3-64 of each block by itself, and a chain over those; source: Dynamo 1.6.1, checked against its own vectors
vllm    SHA-256 over canonical CBOR of (parent, ids, extra keys), chained: vLLM's `sha256_cbor`
llm-d   FNV-64a over the same, chained from the model's name: the default scheme of llm-d's router

A last block that is not full has no hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
import xxhash

from service.errors import InvalidField

Scheme = Literal["dynamo", "vllm", "llm-d"]

DEFAULT_BLOCK_SIZE: dict[str, int] = {"dynamo": 128, "vllm": 16, "llm-d": 16}
"""Ids of a block where the request says nothing: the default of the router or engine."""
MAX_BLOCK_SIZE = 1 << 16
NAME_BYTES = 1024

DYNAMO_SEED = 1337
NONE_SEED = "vllm-none-hash"
"""What the first block of vLLM stands behind when the engine has no PYTHONHASHSEED."""
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_MASK = (1 << 64) - 1

FIELDS = ("return_block_hashes", "block_size", "lora_name", "hash_seed")
"""The fields of a request that choose; `cache_salt` is the fifth, which other things know, too."""


@dataclass(frozen=True, slots=True)
class HashOptions:
    """Which hashes are wanted."""

    scheme: Scheme
    block_size: int
    lora_name: str | None = None
    cache_salt: str | None = None
    seed: str | None = None
    """PYTHONHASHSEED of vLLM's engines, `hashSeed` of llm-d's router."""


class BlockHashes(NamedTuple):
    """The hashes of one sequence of ids. Numbers are signed 64-bit as Dynamo's services read them, digests are hex."""

    block_hashes: list[int] | list[str]
    sequence_hashes: list[int] | None
    """Dynamo's chain over the blocks; the others' hashes are chains themselves."""
    n_ids: int


def hash_options(fields: MutableMapping[str, Any], cache_salt: str | None = None) -> HashOptions | None:
    """Take the fields of `FIELDS` out of a request; None when no hashes are asked for. Raises `InvalidField`.

    `return_block_hashes` is the name of a scheme, or true for Dynamo's.
    """
    wanted = fields.pop("return_block_hashes", None)
    block_size, lora_name, seed = (fields.pop(name, None) for name in FIELDS[1:])
    if wanted is None or wanted is False:
        return None
    scheme = "dynamo" if wanted is True else wanted
    if not isinstance(scheme, str) or scheme not in DEFAULT_BLOCK_SIZE:
        raise InvalidField("return_block_hashes is dynamo, vllm or llm-d.", "return_block_hashes")
    if block_size is None:
        block_size = DEFAULT_BLOCK_SIZE[scheme]
    if type(block_size) is not int or not 0 < block_size <= MAX_BLOCK_SIZE:
        raise InvalidField(f"block_size is a number of ids from 1 to {MAX_BLOCK_SIZE}.", "block_size")
    for name, value in (("lora_name", lora_name), ("hash_seed", seed), ("cache_salt", cache_salt)):
        if value is not None and not (isinstance(value, str) and _is_short(value)):
            raise InvalidField(f"{name} is text of at most {NAME_BYTES} bytes.", name)
    if scheme == "llm-d" and (lora_name or cache_salt):
        raise InvalidField("llm-d's hashes are computed for prompts without a LoRA and a salt.", "return_block_hashes")
    known: Scheme = scheme  # type: ignore[assignment]
    return HashOptions(known, block_size, lora_name or None, cache_salt or None, seed)


def block_hashes(ids: bytes, options: HashOptions, model: str) -> BlockHashes:
    """The hashes of packed little-endian uint32. `model` is the name that llm-d's chain begins with."""
    return _SCHEMES[options.scheme](ids, options, model)


def _is_short(text: str) -> bool:
    try:
        return len(text.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        return False


def _blocks(ids: bytes, block_size: int) -> Iterator[memoryview]:
    size = 4 * block_size
    view = memoryview(ids)
    for start in range(0, len(ids) // size * size, size):
        yield view[start : start + size]


def _dynamo(ids: bytes, options: HashOptions, _model: str) -> BlockHashes:
    seed = DYNAMO_SEED
    if options.lora_name is not None:
        seed += xxhash.xxh3_64_intdigest(options.lora_name.encode(), 0)
    if options.cache_salt is not None:
        seed += xxhash.xxh3_64_intdigest(options.cache_salt.encode(), 1)
    seed &= _MASK
    blocks = [xxhash.xxh3_64_intdigest(block, seed) for block in _blocks(ids, options.block_size)]
    chain: list[int] = []
    for block in blocks:
        pair = b"".join([chain[-1].to_bytes(8, "little"), block.to_bytes(8, "little")]) if chain else b""
        chain.append(xxhash.xxh3_64_intdigest(pair, DYNAMO_SEED) if pair else block)
    return BlockHashes([_signed(block) for block in blocks], [_signed(link) for link in chain], len(ids) // 4)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _vllm(ids: bytes, options: HashOptions, _model: str) -> BlockHashes:
    parent = hashlib.sha256(_cbor_text(NONE_SEED if options.seed is None else options.seed)).digest()
    lora = [options.lora_name] if options.lora_name is not None else []
    first = [options.cache_salt] if options.cache_salt is not None else []
    found: list[str] = []
    for block in _cbor_blocks(ids, options.block_size):
        extra = _cbor_extra([*lora, *(first if not found else [])])
        parent = hashlib.sha256(b"".join([b"\x83", _cbor_head(2, 32), parent, block, extra])).digest()
        found.append(parent.hex())
    return BlockHashes(found, None, len(ids) // 4)


def _llm_d(ids: bytes, options: HashOptions, model: str) -> BlockHashes:
    root = _fnv(options.seed.encode() if options.seed is not None else b"")
    parent = _fnv(b"".join([b"\x83", _cbor_head(0, root), b"\xf6", _cbor_text(model)]))
    found: list[int] = []
    for block in _cbor_blocks(ids, options.block_size):
        parent = _fnv(b"".join([b"\x83", _cbor_head(0, parent), block, b"\xf6"]))
        found.append(_signed(parent))
    return BlockHashes(found, None, len(ids) // 4)


_SCHEMES: dict[str, Callable[[bytes, HashOptions, str], BlockHashes]] = {
    "dynamo": _dynamo,
    "vllm": _vllm,
    "llm-d": _llm_d,
}


def _fnv(data: bytes) -> int:
    value = _FNV_OFFSET
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def _cbor_head(major: int, value: int) -> bytes:
    """The head of an item in canonical CBOR: the shortest form."""
    if value < 24:
        return bytes([major << 5 | value])
    for code, size in ((24, 1), (25, 2), (26, 4)):
        if value < 1 << 8 * size:
            return bytes([major << 5 | code]) + value.to_bytes(size, "big")
    return bytes([major << 5 | 27]) + value.to_bytes(8, "big")


def _cbor_blocks(ids: bytes, block_size: int) -> Iterator[bytes]:
    """Each full block as an array in canonical CBOR: ids of 1, 2, 3 or 5 bytes, in the shortest form."""
    n_ids = len(ids) // (4 * block_size) * block_size
    values = np.frombuffer(ids, "<u4", n_ids)
    if not n_ids:
        return
    widths = 1 + (values >= 24) + (values >= 1 << 8) + 2 * (values >= 1 << 16)
    ends = np.cumsum(widths)
    starts = ends - widths
    written = np.empty(ends[-1], np.uint8)
    written[starts] = np.where(values < 24, values, 24 + (values >= 1 << 8) + (values >= 1 << 16))
    digits = values.astype(">u4").view(np.uint8).reshape(-1, 4)
    for width in (2, 3, 5):
        chosen = widths == width
        for place in range(1, width):
            written[starts[chosen] + place] = digits[chosen, 5 - width + place - 1]
    head, data = _cbor_head(4, block_size), written.tobytes()
    bounds = [0, *ends[block_size - 1 :: block_size].tolist()]
    for start, end in pairwise(bounds):
        yield head + data[start:end]


def _cbor_text(text: str) -> bytes:
    data = text.encode()
    return _cbor_head(3, len(data)) + data


def _cbor_extra(keys: list[str]) -> bytes:
    return b"".join([_cbor_head(4, len(keys)), *map(_cbor_text, keys)]) if keys else b"\xf6"


def hashes_json(hashes: BlockHashes) -> bytes:
    """The fields of an answer, without braces: what Dynamo's `/select` takes in the place of ids."""
    fields: dict[str, Any] = {"block_hashes": hashes.block_hashes}
    if hashes.sequence_hashes is not None:
        fields["sequence_hashes"] = hashes.sequence_hashes
    fields["isl_tokens"] = hashes.n_ids
    return orjson.dumps(fields)[1:-1]


def packed(hashes: list[int] | list[str]) -> bytes:
    """Hashes end to end: little-endian int64, or digests of 32 bytes."""
    return b"".join([h.to_bytes(8, "little", signed=True) if isinstance(h, int) else bytes.fromhex(h) for h in hashes])
