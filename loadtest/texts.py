"""The texts that requests are cut from: a folder, or what every machine with Python has."""

from __future__ import annotations

import importlib.util
import json
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadtest.errors import BadOption

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpora"
MAX_CORPUS_BYTES = 16 << 20
MIN_CORPUS_BYTES = 1 << 12
SUFFIXES = {".txt", ".md", ".rst", ".py", ".c", ".h", ".cc", ".cpp", ".rs", ".go", ".js", ".ts", ".java", ".jsonl"}
SCRIPTS = (
    (0x61, 26), (0x430, 32), (0x3B1, 25), (0x5D0, 27), (0x621, 42), (0x905, 53), (0xE01, 46), (0x3042, 82),
    (0x4E00, 8000), (0xAC00, 11000), (0x1F600, 60),
)  # fmt: skip
"""First code point and size of the ranges that made-up words are spelt from."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by name, each valid UTF-8, and where they come from."""

    origin: str
    corpora: dict[str, bytes]
    """Plain text."""
    conversations: bytes = b""
    """The messages of recorded conversations, end to end; empty when there are none."""
    cases: tuple[bytes, ...] = field(default=())
    """Small tricky inputs."""


def read_texts(folder: str, seed: int) -> Texts:
    """The texts of a folder, of the shared data, or made here. Raises `BadOption` for a folder without text."""
    if folder:
        return _of_folder(Path(folder), folder)
    if SHARED.is_dir():
        return _of_folder(SHARED, "shared corpora")
    return Texts("Python's own sources and topics, and words from the seed", made_corpora(seed))


def made_corpora(seed: int) -> dict[str, bytes]:
    """Three corpora that need nothing but Python: its help topics, its library's sources, words of many scripts."""
    code = standard_library(8 << 20)
    return {"prose": _help_topics() or code[: 1 << 20], "code": code, "multilingual": made_words(2 << 20, seed)}


def standard_library(max_bytes: int) -> bytes:
    """Sources of the standard library, in the order of their names."""
    parts, total = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = _utf8(path)
        parts.append(text)
        total += len(text)
        if total >= max_bytes:
            break
    return _whole_characters(b"\n".join(parts)[:max_bytes])


def made_words(n_bytes: int, seed: int) -> bytes:
    """About `n_bytes` of made-up words, a sentence in one script and the next in another."""
    rng = np.random.default_rng((seed, 0x3C1))
    parts: list[str] = []
    total = 0
    while total < n_bytes:
        first, size = SCRIPTS[int(rng.integers(len(SCRIPTS)))]
        # Few of the letters are frequent, as in any language.
        letters = first + (rng.random(400) ** 2 * size).astype(np.int64)
        lengths = rng.integers(1, 9, 60)
        ends = np.cumsum(lengths)
        words = ["".join(map(chr, letters[end - n : end])) for n, end in zip(lengths, ends, strict=True)]
        sentence = " ".join(words) + (". " if rng.random() < 0.8 else f" {rng.integers(10**6)}.\n")
        parts.append(sentence)
        total += len(sentence.encode())
    return "".join(parts).encode()


def _help_topics() -> bytes:
    """The text of Python's help topics, where it is installed."""
    if importlib.util.find_spec("pydoc_data") is None or importlib.util.find_spec("pydoc_data.topics") is None:
        return b""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()


def _of_folder(folder: Path, origin: str) -> Texts:
    """Each file of the folder is a corpus of its name; a folder in it is one corpus of all its files."""
    if not folder.is_dir():
        raise BadOption(f"--text {origin}: no such folder")
    corpora: dict[str, bytes] = {}
    conversations, cases = b"", []
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            text = b"\n".join(_utf8(path) for path in sorted(entry.rglob("*")) if _is_text(path))
            corpora[entry.name] = text[:MAX_CORPUS_BYTES]
        elif entry.suffix == ".jsonl":
            messages, rows = _of_rows(entry)
            conversations += messages
            cases += rows
        elif _is_text(entry):
            corpora[entry.stem] = _utf8(entry)[:MAX_CORPUS_BYTES]
    found = {name: _whole_characters(text) for name, text in corpora.items() if len(text) >= MIN_CORPUS_BYTES}
    if not found:
        raise BadOption(f"--text {origin}: no file of text with at least {MIN_CORPUS_BYTES} bytes")
    return Texts(origin, found, conversations, tuple(cases))


def _of_rows(path: Path) -> tuple[bytes, list[bytes]]:
    """Rows with `messages` are conversations, rows with `text` are cases."""
    contents: list[str] = []
    cases: list[bytes] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for message in row.get("messages", ()):
            if isinstance(message.get("content"), str):
                contents.append(message["content"])
        if isinstance(row.get("text"), str):
            # A lone surrogate has no UTF-8 and no ids.
            cases.append(row["text"].encode("utf-8", "ignore"))
    return "\n".join(contents).encode("utf-8", "ignore"), cases


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix in SUFFIXES


def _utf8(path: Path) -> bytes:
    return path.read_bytes().decode("utf-8", "ignore").encode()


def _whole_characters(text: bytes) -> bytes:
    """The text without the part of a character at its end."""
    return text.decode("utf-8", "ignore").encode()
