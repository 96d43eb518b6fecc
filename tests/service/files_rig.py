"""Directories of documents, what the reference makes of them, and `sidetok tokenize-files` run on them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Reference

from service.files.command import tokenize_files
from tests.data import tokenizer_json

FAMILY = "byte_bpe"
PLAIN = ("--cpu-engine", "reference", "--gpus", "none", "--cpu-workers", "2")


@dataclass
class Workplace:
    """An input, an output, and a tokenizer file."""

    folder: Path
    family: str = FAMILY

    def __post_init__(self) -> None:
        self.input.mkdir(exist_ok=True)
        self.tokenizer.write_bytes(tokenizer_json(self.family))

    @property
    def input(self) -> Path:
        """The directory that is read."""
        return self.folder / "in"

    @property
    def output(self) -> Path:
        """The directory that is written."""
        return self.folder / "out"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        return self.folder / "tokenizer.json"

    def write(self, name: str, data: str | bytes) -> None:
        """A file of the input."""
        path = self.input / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)

    def arguments(self, *more: str, output: Path | None = None) -> list[str]:
        """The arguments of the command."""
        where = [str(self.input), str(output or self.output)]
        cache = ["--cache-dir", str(self.folder / "cache")]
        return [*where, "--tokenizer", str(self.tokenizer), *cache, *PLAIN, *more]

    def run(self, *more: str, output: Path | None = None) -> int:
        """Run the command; the exit status."""
        return tokenize_files(self.arguments(*more, output=output), environ={})

    def manifest(self, output: Path | None = None) -> dict[str, Any]:
        """What the manifest says."""
        found: dict[str, Any] = json.loads(((output or self.output) / "manifest.json").read_bytes())
        return found

    def documents(self, output: Path | None = None) -> list[list[int]]:
        """The ids of every document, read as docs/files.md says."""
        folder = output or self.output
        manifest = self.manifest(folder)
        return [
            ids.tolist() for shard in manifest["shards"] for ids in read(folder, shard["name"], manifest["id_type"])
        ]

    def expected(self, texts: list[str], special_tokens: bool = True) -> list[list[int]]:
        """The reference's ids of each text."""
        reference = Reference.from_str(tokenizer_json(self.family).decode())
        return [reference.encode(text, add_special_tokens=special_tokens).ids for text in texts]


def read(folder: Path, name: str, id_type: str) -> list[NDArray[Any]]:
    """The documents of one shard."""
    path = folder / f"{name}.bin"
    ids = np.memmap(path, id_type, "r") if path.stat().st_size else np.empty(0, id_type)
    starts = np.memmap(folder / f"{name}.idx", np.uint64, "r").tolist()
    return [ids[start:end] for start, end in pairwise(starts)]


def digests(folder: Path) -> dict[str, str]:
    """Name and digest of every file that a run wrote."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir() if p.name != ".lock"}


def json_lines(texts: list[str], field: str = "text") -> bytes:
    """A file of JSON lines."""
    return "".join(json.dumps({field: text}) + "\n" for text in texts).encode()
