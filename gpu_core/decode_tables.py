"""What each id stands for in a decoded text: bytes of the entries, for the kernel and for its twin in NumPy.

Decoding has two steps. Bytes of the entries, one after the other: the device. Bytes to text: `text_of`, on the host.

    decoder      ByteLevel                              Replace, ByteFallback, Fuse [, Strip]
    entry        "Ġwörd" -> b" w\\xf6rd"                 "▁wörd" -> " wörd",  "<0xE4>" -> b"\\xe4"
    to text      invalid UTF-8 becomes U+FFFD           a run of byte entries that is no text: U+FFFD for each
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.bpe_file import byte_alphabet
from gpu_core.decode_layout import DECODE_TABLES, INLINE, LENGTH, SPECIAL
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec, components

MAX_ID = (1 << 22) - 1
"""Slots of 16 bytes are kept for all ids up to the largest one."""
# The reference parses two characters as a hexadecimal number, and such a number may have a sign.
_BYTE_ENTRY = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")


@dataclass(frozen=True, slots=True)
class DecodeTables:
    """One tokenizer's entries by id."""

    pieces: NDArray[np.uint32]
    """(n, 4): up to 12 bytes of the entry, or where it lies in the pool; then its length, and bit 31 if special."""
    pool: NDArray[np.uint8]
    is_byte: NDArray[np.bool_] | None
    """Entries that stand for a single byte under ByteFallback; None: the decoder is ByteLevel."""
    n_stripped: int
    """Blanks that are taken away at the beginning of a text, as far as there are any."""

    @property
    def longest(self) -> int:
        """Bytes of the longest entry."""
        return int((self.pieces[:, 3] & LENGTH).max(initial=0))

    @property
    def n_bytes(self) -> int:
        """Device memory that the tables take."""
        return self.pieces.nbytes + self.pool.nbytes

    def struct(self, addresses: dict[str, int]) -> NDArray[Any]:
        """The kernel's first argument, given where the arrays lie."""
        struct = np.zeros((), dtype=DECODE_TABLES)
        struct["pieces"], struct["pool"] = addresses["pieces"], addresses["pool"]
        struct["n_ids"] = len(self.pieces)
        return struct


def build_decode_tables(data: bytes, spec: TokenizerSpec) -> DecodeTables:
    """The entries of a tokenizer.json that `read_spec` has accepted.

    Raises `UnsupportedTokenizer` when its texts cannot be decoded exactly; encoding may well be possible.
    """
    if spec.model_type != "BPE":
        raise UnsupportedTokenizer(f"decoding: the model is {spec.model_type}, not BPE")
    if spec.max_id > MAX_ID:
        raise UnsupportedTokenizer(f"decoding: ids up to {spec.max_id}; the device holds those up to {MAX_ID}")
    file = json.loads(data)
    decoder = _decoder(file.get("decoder"))
    vocab: dict[str, int] = file["model"]["vocab"]
    if len(set(vocab.values())) < len(vocab):
        raise UnsupportedTokenizer("decoding: two entries of the vocabulary have one id")
    contents = {i: content for content, i in vocab.items()}
    contents |= {token.id: token.content for token in spec.added_tokens}
    # One of several added tokens of the same content is enough to make it special.
    special = {token["content"] for token in file.get("added_tokens") or [] if token["special"]}
    texts = [contents.get(i) for i in range(max(1, spec.max_id + 1))]
    entries = [None if text is None else decoder.piece(text) for text in texts]
    if decoder.has_byte_entries and b"" in entries:
        raise UnsupportedTokenizer("decoding: an entry without content between entries that stand for bytes")
    pieces, pool = _pack([entry or b"" for entry in entries], np.array([text in special for text in texts], dtype=bool))
    is_byte = None
    if decoder.has_byte_entries:
        is_byte = np.array([text is not None and decoder.is_byte(text) for text in texts], dtype=bool)
    return DecodeTables(pieces, pool, is_byte, decoder.n_stripped)


def decode_plain(
    tables: DecodeTables, ids: NDArray[np.uint32], sequence_starts: NDArray[np.uint32], skip_special_tokens: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What the kernel does, in NumPy: all bytes, and where those of each sequence begin and the last one ends."""
    known = ids < len(tables.pieces)
    slots = np.where(known[:, None], tables.pieces[np.where(known, ids, 0)], 0).astype(np.uint32)
    lengths = (slots[:, 3] & LENGTH).astype(np.int64)
    if skip_special_tokens:
        lengths[(slots[:, 3] & SPECIAL) != 0] = 0
    ends = np.cumsum(lengths)
    offsets = np.concatenate([[0], ends])
    source = np.concatenate([slots.view(np.uint8).reshape(-1), tables.pool])
    first = np.where(lengths > INLINE, slots.nbytes + slots[:, 0].astype(np.int64), 16 * np.arange(len(ids)))
    places = np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])
    return source[places], offsets[sequence_starts]


def text_of(tables: DecodeTables, data: bytes, ids: NDArray[np.uint32], skip_special_tokens: bool) -> str:
    """The text of one sequence, given the bytes of its entries and its ids."""
    if tables.is_byte is None:
        return data.decode("utf-8", "replace")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = _fallback_text(tables, tables.is_byte, ids, skip_special_tokens)
    return text[min(len(text) - len(text.lstrip(" ")), tables.n_stripped) :]


def _fallback_text(
    tables: DecodeTables, is_byte: NDArray[np.bool_], ids: NDArray[np.uint32], skip_special_tokens: bool
) -> str:
    """Runs of byte entries are text as a whole, or each of their bytes is U+FFFD."""
    ids = ids[ids < len(tables.pieces)]
    words = tables.pieces[ids, 3]
    # No entry of such a tokenizer is empty: what has no length is no entry, and parts no run.
    is_left_out = (words & LENGTH) == 0
    if skip_special_tokens:
        is_left_out |= (words & SPECIAL) != 0
    ids = ids[~is_left_out]
    data, starts = decode_plain(tables, ids, np.arange(len(ids) + 1, dtype=np.uint32), False)
    parts = []
    for are_bytes, run in groupby(range(len(ids)), key=is_byte[ids].item):
        places = list(run)
        piece = data[starts[places[0]] : starts[places[-1] + 1]].tobytes()
        try:
            parts.append(piece.decode())
        except UnicodeDecodeError:
            parts.append("\ufffd" * len(piece) if are_bytes else piece.decode("utf-8", "replace"))
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _ByteLevel:
    """Each character of an entry stands for a byte."""

    byte_of: dict[str, int]
    has_byte_entries = False
    n_stripped = 0

    def piece(self, content: str) -> bytes:
        try:
            return bytes([self.byte_of[char] for char in content])
        except KeyError:
            # The reference takes an entry with another character as it is.
            return content.encode()

    def is_byte(self, content: str) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _ByteFallback:
    """An entry is text once `pattern` is replaced, or stands for a byte as a whole."""

    pattern: str
    replacement: str
    n_stripped: int
    has_byte_entries = True

    def piece(self, content: str) -> bytes:
        text = content.replace(self.pattern, self.replacement)
        match = _BYTE_ENTRY.fullmatch(text)
        return bytes([int(match[1], 16)]) if match else text.encode()

    def is_byte(self, content: str) -> bool:
        return _BYTE_ENTRY.fullmatch(content.replace(self.pattern, self.replacement)) is not None


def _decoder(step: Any) -> _ByteLevel | _ByteFallback:
    """What the steps of the file's decoder come to. Raises `UnsupportedTokenizer`."""
    steps = components(step, "decoders")
    kinds = tuple(step.get("type") for step in steps)
    if kinds in {("ByteLevel",), ("ByteLevel", "Fuse")}:
        return _ByteLevel(byte_alphabet())
    if kinds[:3] != ("Replace", "ByteFallback", "Fuse") or kinds[3:] not in {(), ("Strip",)}:
        raise UnsupportedTokenizer(f"decoding: the decoder {' + '.join(map(str, kinds)) or 'none'}")
    pattern = steps[0]["pattern"].get("String")
    if not pattern:
        raise UnsupportedTokenizer("decoding: a replacement by a pattern that is no string")
    strip: dict[str, Any] = steps[3] if len(steps) > 3 else {"content": " ", "start": 0, "stop": 0}
    if strip["content"] != " " or strip["stop"]:
        raise UnsupportedTokenizer("decoding: the end of the text, or other characters than blanks, are stripped")
    return _ByteFallback(pattern, steps[0]["content"], int(strip["start"]))


def _pack(entries: list[bytes], special: NDArray[np.bool_]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    lengths = np.array([len(entry) for entry in entries], dtype=np.uint32)
    padded = b"".join(entry[:INLINE].ljust(INLINE + 4, b"\0") for entry in entries)
    pieces = np.frombuffer(padded, "<u4").reshape(-1, 4).copy()
    pieces[:, 3] = lengths | (special * np.uint32(SPECIAL))
    is_long = lengths > INLINE
    pool = b"".join(entry for entry in entries if len(entry) > INLINE)
    ends = np.cumsum(np.where(is_long, lengths, 0))
    pieces[is_long, 0] = (ends - lengths)[is_long]
    pieces[is_long, 1:3] = 0
    return pieces, np.frombuffer(pool or b"\0", np.uint8)
