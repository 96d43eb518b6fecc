"""Long runs of one kind are found wherever they begin and end."""

from __future__ import annotations

import random

import numpy as np

from gpu_core.runs import SHORTEST, AsciiRuns, Run, runs_in

KINDS = bytes(
    1 if chr(i).isalpha() and i < 128 else 2 if i in b" \t\r\n" else 3 if chr(i).isdigit() and i < 128 else 0
    for i in range(256)
)
WORDS = ["word ", "a", " ", "\n", "12", "!", "=" * 300, "ab" * 200, "\t" * 90, "x1"]


def expected(document: bytes, min_run: int) -> list[Run]:
    """By a look at every byte."""
    return runs_in(np.frombuffer(document.translate(KINDS), np.uint8), min_run)


def test_runs_at_every_place() -> None:
    """Runs of lengths about the shortest, at every offset in a row."""
    finder = AsciiRuns(KINDS, SHORTEST)
    for n in (SHORTEST, SHORTEST + 1, SHORTEST + 2, 400):
        for offset in range(130):
            document = b"!" * offset + b"a" * n + b" end"
            found = finder.find(document)
            assert found == ([Run(offset, offset + n, 1, 0, 2)] if n > SHORTEST else [])


def test_random_documents() -> None:
    """The same as by a look at every byte, for runs of all kinds among words."""
    rng = random.Random(1)
    n_found = 0
    for _ in range(400):
        parts = rng.choices(WORDS, k=rng.randrange(30))
        for _run in range(rng.randrange(4)):
            one = rng.choice(["a", "\n ", "7", "=", "aB", " \t"])
            parts.insert(rng.randrange(len(parts) + 1), one * (rng.choice((256, 320, 1000, 70_000)) // len(one)))
        document = "".join(parts).encode()
        for min_run in (SHORTEST, 320, 4096):
            found = AsciiRuns(KINDS, min_run).find(document)
            assert found == expected(document, min_run)
            n_found += len(found)
    assert n_found > 500


def test_short_documents() -> None:
    """What is shorter than a row has no run."""
    finder = AsciiRuns(KINDS, SHORTEST)
    assert [finder.find(b"a" * n) for n in (0, 1, 127, 128, 255)] == [[], [], [], [], []]
    assert runs_in(np.zeros(0, np.uint8), 3) == []


def test_one_other_byte_in_a_long_run() -> None:
    """Bytes beside, between and within the two ranges of letters, wherever they stand, part a run in two."""
    finder = AsciiRuns(KINDS, SHORTEST)
    for other in b"@[\\^`{\x00\x7f 5":
        for at in (300_000, 299_999, 262_144 - 1, 262_144, 128 * 7, 500_000):
            document = bytearray(b"aZ" * 400_000)
            document[at] = other
            assert finder.find(bytes(document)) == expected(bytes(document), SHORTEST)
    blanks = bytearray(b"\n \t" * 200_000)
    for other in b"\x0b\x1f!\x08":
        blanks[333_333] = other
        assert finder.find(bytes(blanks)) == expected(bytes(blanks), SHORTEST)
