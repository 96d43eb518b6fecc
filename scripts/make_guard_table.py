#!/usr/bin/env python3
"""Write dispatcher/data/gigatoken_guard.txt: the code points on which gigatoken and the reference disagree.

Every code point is put between characters of each class, for every pattern family, and the two engines' ids are
compared. The vocabulary is synthetic: each byte, and merges of a byte with the context's characters, so that the ids
show where a text was split. Marks around the code point show how NFC composes and orders it, and pairs of code points
what it composes. What fastokens does with the same texts is reported too. Takes half an hour of CPU; the table changes
only with a library.

Usage: scripts/make_guard_table.py [--processes N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dispatcher.engines.fastokens_engine import FastokensEngine  # noqa: E402
from dispatcher.engines.gigatoken_engine import GigatokenEngine  # noqa: E402
from dispatcher.engines.reference_engine import ReferenceEngine  # noqa: E402
from gpu_core.errors import UnsupportedTokenizer  # noqa: E402
from gpu_core.pattern import BRANCHES, FAMILIES  # noqa: E402
from gpu_core.spec import read_spec  # noqa: E402

TABLE = ROOT / "dispatcher" / "data" / "gigatoken_guard.txt"
HEADER = "# Written by scripts/make_guard_table.py: gigatoken {} against tokenizers {}.\n"
SPLIT_CONTEXTS = ("a{}b", "A{}B", "1{}1", " {} ", "!{}!", "\n{}\n", "{}'s", "a'{}b")
NFC_CONTEXTS = ("a{}\u0301b", "a{}\u0323b", "a\u0301{}\u0323b", "a\u0323{}\u0301b", "{}\u0301", "\u1100{}\u11a8")
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PAIR_ROWS = [*range(0x00, 0x20), *range(0x110, 0x170)]
"""Rows of 256 code points in which a script may have characters that compose with one another."""
CHUNK = 256
FAMILIES_WITHOUT_SPLITS = ("digits_gpt2",)
"""Families whose splits are those of another one and a class that is compared there."""
Encode = Callable[[str], bytes]


def byte_symbols() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in printable)
    symbols = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    return [symbols[b] for b in range(256)]


def probe_file(splits: Sequence[str], nfc: bool) -> str:
    """A tokenizer.json with the family's splits and a vocabulary that makes them visible."""
    symbols = byte_symbols()
    vocab = {symbol: b for b, symbol in enumerate(symbols)}
    merges = []
    for context in sorted({c for text in SPLIT_CONTEXTS for c in text.replace("{}", "")} | {"y"}):
        for symbol in symbols:
            for left, right in ((symbols[ord(context)], symbol), (symbol, symbols[ord(context)])):
                if left + right not in vocab:
                    vocab[left + right] = len(vocab)
                    merges.append(f"{left} {right}")
    steps = [step for split in splits for step in pre_tokenizers(split)]
    steps.append(byte_level(use_regex="'s" in splits[-1]))
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
            "post_processor": None,
            "decoder": byte_level(use_regex=True),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": merges},
        }
    )  # fmt: skip


def byte_level(use_regex: bool) -> dict[str, Any]:
    """The ByteLevel component."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def pre_tokenizers(split: str) -> Iterator[dict[str, Any]]:
    """The pre-tokenizer of one split of a family; GPT-2's is inside ByteLevel."""
    if "'s" in split:
        return
    texts: dict[str, str] = {}
    for text, name in BRANCHES.items():
        texts.setdefault(name, text)
    regex = "|".join(texts[name] for name in split.split())
    if "ascii_tail" in split:
        # As the published files spell it; gigatoken knows the pattern by its text.
        regex = regex.replace(r"[\r\n]", "[\r\n]").replace(r"[^\r\n", "[^\r\n")
    yield {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def differing(reference: Encode, engine: Encode, code_points: Sequence[int], context: str) -> set[int]:
    """The code points on which two engines disagree in a context; halves a text that differs until one is left."""
    text = "\n.".join(context.format(chr(c)) for c in code_points)
    if reference(text) == engine(text):
        return set()
    if len(code_points) == 1:
        return set(code_points)
    half = len(code_points) // 2
    return differing(reference, engine, code_points[:half], context) | differing(
        reference, engine, code_points[half:], context
    )


def differing_pairs(reference: Encode, engine: Encode, known: set[int]) -> set[int]:
    """The second code points of pairs that differ though neither is known to."""
    found: set[int] = set()
    for row in PAIR_ROWS:
        members = [c for c in range(row << 8, (row + 1) << 8) if c not in known]
        for first in members:
            if chr(first) not in "{}":
                found |= differing(reference, engine, members, f"a{chr(first)}{{}}b")
    return found


def compare(family: str, splits: Sequence[str], nfc: bool) -> tuple[str, dict[str, set[int]]]:
    """The family and, by engine, the code points that differ."""
    text = probe_file(splits, nfc)
    spec = read_spec(text.encode())
    assert spec.pattern_family == family, (spec.pattern_family, family)
    reference = ReferenceEngine(text).encode
    found: dict[str, set[int]] = {}
    for engine_class in (FastokensEngine, GigatokenEngine):
        try:
            engine = engine_class(text, spec).encode
        except UnsupportedTokenizer:
            continue
        differ: set[int] = set()
        for context in NFC_CONTEXTS if nfc else SPLIT_CONTEXTS:
            for i in range(0, len(CODE_POINTS), CHUNK):
                differ |= differing(reference, engine, CODE_POINTS[i : i + CHUNK], context)
        if nfc:
            differ |= differing_pairs(reference, engine, differ)
        found[engine_class.name] = differ
    return family + (" + NFC" if nfc else ""), found


def ranges(code_points: Iterable[int]) -> list[tuple[int, int]]:
    """First and last code points of each gapless stretch."""
    result: list[tuple[int, int]] = []
    for c in sorted(code_points):
        if result and result[-1][1] == c - 1:
            result[-1] = (result[-1][0], c)
        else:
            result.append((c, c))
    return result


def listed(code_points: Iterable[int]) -> list[str]:
    """One line of the table for each stretch."""
    return [f"{a:04X}" if a == b else f"{a:04X}-{b:04X}" for a, b in ranges(code_points)]


def main() -> None:
    """Compare, report, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    processes = parser.parse_args().processes
    jobs = [(name, splits, False) for splits, name in FAMILIES.items() if name not in FAMILIES_WITHOUT_SPLITS]
    jobs.append(next((name, splits, True) for splits, name in FAMILIES.items() if name == "qwen2"))
    table: set[int] = set()
    # Never forked: gigatoken's threads do not survive it.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for result in [pool.apply_async(compare, job) for job in jobs]:
            family, found = result.get()
            for engine, differ in found.items():
                print(f"{family}: {engine} differs on {len(differ)}: {' '.join(listed(differ)[:8])}", flush=True)
            table |= found.get("gigatoken", set())
    TABLE.write_text(
        HEADER.format(GigatokenEngine.version, ReferenceEngine.version) + "\n".join(listed(table)) + "\n",
        encoding="ascii",
    )
    print(f"{len(table)} code points in {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
