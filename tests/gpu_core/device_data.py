"""Tokenizers, texts and reference ids for what runs on a device machine: a folder laid out as CONTRIBUTING.md says."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec, read_spec
from gpu_core.tables import check_support

Ids = NDArray[np.uint32]


class Missing(SystemExit):
    """Ends the program with one sentence that says what the folder lacks."""


class DeviceData:
    """What lies in a data folder. Raises `Missing` where it lacks what is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if next(folder.glob(self._tokenizer("*")), None) is None:
            raise Missing(f'{folder} has no {self._tokenizer("NAME")}: see "Benchmarks" in CONTRIBUTING.md.')

    def families(self) -> list[str]:
        """Tokenizers that the device serves."""
        names = sorted(path.parent.name for path in self.folder.glob(self._tokenizer("*")))
        return [name for name in names if _is_served(self.tokenizer_json(name))]

    def tokenizer_json(self, family: str) -> bytes:
        """One tokenizer's file."""
        return lzma.decompress(self._found(self._tokenizer(family)).read_bytes())

    def corpus(self, name: str) -> str:
        """`books`, `code`, `multilingual` or `agentic`."""
        path = self.folder / "corpora" / f"{name}.txt"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        rows = self._found(f"corpora/{name}.jsonl", f"corpora/{name}.txt").read_text(encoding="utf-8").splitlines()
        messages = [message for row in rows for message in json.loads(row)["messages"]]
        return "\n".join(message["content"] for message in messages if isinstance(message.get("content"), str))

    def adversarial(self) -> list[bytes]:
        """Small tricky documents; those with lone surrogates are no UTF-8 and left out."""
        rows = self._found("corpora/adversarial.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [json.loads(row)["text"] for row in rows]
        return [text.encode() for text in texts if not any(0xD800 <= ord(char) < 0xE000 for char in text)]

    @staticmethod
    def _tokenizer(family: str) -> str:
        return f"tokenizers/{family}/tokenizer.json.xz"

    def _found(self, *names: str) -> Path:
        """The file of the first name; the others may take its place."""
        path = self.folder / names[0]
        if not path.is_file():
            wanted = " or ".join(reversed(names))
            raise Missing(f'{self.folder} has no {wanted}: see "Benchmarks" in CONTRIBUTING.md.')
        return path


class Reference:
    """The reference library over one file."""

    def __init__(self, data: bytes) -> None:
        self.tokenizer = tokenizers.Tokenizer.from_buffer(data)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def ids(self, documents: list[bytes]) -> list[Ids]:
        """Ids of each document, without special tokens around it."""
        encodings = self.tokenizer.encode_batch_fast(
            [document.decode() for document in documents], add_special_tokens=False
        )
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def ids_of_batches(self, batches: list[list[bytes]]) -> list[list[Ids]]:
        """The same for several batches, all documents at a time: the library takes a thread for each."""
        ids = iter(self.ids([document for batch in batches for document in batch]))
        return [[next(ids) for _ in batch] for batch in batches]


def window(text: bytes, start: int, n_bytes: int) -> bytes:
    """About `n_bytes` of UTF-8 from `start`, whole characters only."""
    piece = text[start : start + n_bytes]
    return piece.decode("utf-8", "ignore").encode()


def windows(rng: random.Random, text: bytes, sizes: list[int]) -> list[bytes]:
    """Windows at random places."""
    return [window(text, rng.randrange(max(1, len(text) - size)), size) for size in sizes]


def plain_literals(spec: TokenizerSpec) -> list[bytes]:
    """Added tokens without flags, up to 60 from both ends of the list."""
    found = [t.content.encode() for t in spec.added_tokens if not (t.single_word or t.lstrip or t.rstrip)]
    return found if len(found) <= 60 else found[:30] + found[-30:]


def spliced(rng: random.Random, text: bytes, literals: list[bytes], n_bytes: int) -> bytes:
    """A window with added tokens, white space, digit runs, long runs and rare characters put in at random places."""
    specials = [
        *literals, b"\n\n", b" \n ", b"\t", b"   ", b"1234567", b"'s", b"'LL", "'\u017f".encode(), "中文。".encode(),
        "e\u0301".encode(), "👨‍👩‍👧".encode(), b"=" * 64, b"a" * 65, b"\r\n\r\n", "\u3000".encode(),
        b"x" * 513, b" " * 300, b"\n" * 40, b"\t" * 5, "\u2581".encode(), ("\u2581" * 33).encode(), b"\r",
    ]  # fmt: skip
    pieces = []
    left = n_bytes
    while left > 0:
        piece = windows(rng, text, [rng.randrange(1, 120)])[0]
        special = rng.choice(specials)
        pieces += [piece, special]
        left -= len(piece) + len(special)
    return b"".join(pieces)


def _is_served(data: bytes) -> bool:
    try:
        check_support(read_spec(data))
    except UnsupportedTokenizer:
        return False
    return True
