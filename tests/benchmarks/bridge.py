"""How bridge cuts fall in real text, for the design of a kernel. Run: python -m tests.benchmarks.bridge [family ...]

One line per corpus: components and their lengths in symbols, how many are whole entries, the share of the characters in
long components, the share of 8,192-character documents that hold a long one, and what hashed pair bits add.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_core.bridge_tables import closed_strings, pair_hash, pair_points
from gpu_core.character_bpe import BLANK, CharacterBpe, read_character_bpe
from gpu_core.run_literals import split_literals
from gpu_core.spec import read_spec
from gpu_core.twin_bridge import BridgeTwin
from tests.data import corpora, tokenizer_json

MAX_CHARACTERS = 2_000_000
DOCUMENT = 8_192
LIMITS = (16, 32, 64, 128)
MAX_BYTES = 512
Points = NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """A text cut into components; added tokens are left out."""

    text: str
    """With a space for a blank."""
    begins: Points
    ends: Points

    @property
    def lengths(self) -> Points:
        """Characters of each component."""
        return self.ends - self.begins


def points_of(text: str) -> Points:
    """Code points."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)


def joined(points: Points, pairs: Points, n_bits: int = 0) -> NDArray[np.bool_]:
    """Whether each character but the first joins the one before: exact, or beyond ASCII by `n_bits` hashed bits."""
    x, y = points[:-1], points[1:]
    exact: NDArray[np.bool_] = np.isin(x << 21 | y, pairs[:, 0] << 21 | pairs[:, 1])
    if not n_bits:
        return exact
    bits = np.zeros(1 << n_bits, dtype=bool)
    beyond = pairs[(pairs >= 128).any(axis=1)]
    bits[pair_hash(beyond[:, 0], beyond[:, 1], n_bits)] = True
    hashed: NDArray[np.bool_] = bits[pair_hash(x, y, n_bits)]
    return np.where((x < 128) & (y < 128), exact, hashed)


def added_tokens(raw: str, twin: BridgeTwin) -> list[tuple[int, int]]:
    """(first, end) of each, in characters."""
    data = raw.encode()
    character_of = np.cumsum((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)
    found = twin.find_literals(data)
    return [(int(character_of[at]) - 1, int(character_of[at + length - 1])) for at, length, _id in found]


def cut(raw: str, added: list[tuple[int, int]], pairs: Points, n_bits: int = 0) -> Cut:
    """All components of a text with a space for each blank."""
    inside = np.zeros(len(raw) + 1, dtype=bool)
    start = np.ones(len(raw) + 1, dtype=bool)
    start[1:-1] = ~joined(points_of(raw), pairs, n_bits)
    for first, end in added:
        inside[first:end], start[first], start[end] = True, True, True
    borders = np.flatnonzero(start)
    begins, ends = borders[:-1], borders[1:]
    outside = ~inside[begins]
    return Cut(raw, begins[outside], ends[outside])


def shares(found: Cut, known: set[str]) -> str:
    """The numbers of one cut."""
    lengths = found.lengths
    n_characters = int(lengths.sum())
    counts = Counter(found.text[a:b] for a, b in zip(found.begins.tolist(), found.ends.tolist(), strict=True))
    hits = sum(n for component, n in counts.items() if component in known)
    n_documents = -(-len(found.text) // DOCUMENT)
    parts = [f"components {len(lengths):,}", f"mean {lengths.mean():.2f}", f"longest {lengths.max()}"]
    parts.append(f"hits {hits / len(lengths):.1%}")
    parts += [f">{limit}: {lengths[lengths > limit].sum() / n_characters:.2%}" for limit in LIMITS]
    long_bytes = [len(c.encode()) > MAX_BYTES for c in counts]
    beyond = sum(len(c) * n for (c, n), is_long in zip(counts.items(), long_bytes, strict=True) if is_long)
    parts.append(f">{MAX_BYTES} bytes: {beyond / n_characters:.2%}")
    for limit in (32, 64, 128):
        holding = len(np.unique(found.begins[lengths > limit] // DOCUMENT))
        parts.append(f"documents >{limit}: {holding / n_documents:.1%}")
    return ", ".join(parts)


def violations(model: CharacterBpe) -> int:
    """Neighbouring rules whose products are not in the order of their ranks."""
    return int((np.diff(model.rules.product) < 0).sum())


def main(families: list[str]) -> None:
    """Prints the lines."""
    for family in families:
        data = tokenizer_json(family)
        spec = read_spec(data)
        model = read_character_bpe(data, spec)
        twin = BridgeTwin(model, *split_literals(spec))
        pairs = pair_points(model)
        closed = closed_strings(model)
        known = {content.replace(BLANK, " ") for content in closed}
        added = {token.content for token in spec.added_tokens}
        ordinary = [e for e in model.entries if e not in added and e not in closed and not e.startswith("<0x")]
        print(f"{family}: {len(pairs):,} pairs, {len(model.characters):,} characters, {violations(model)} violations,")
        print(f"  {len(closed):,} closed entries, {len(ordinary)} ordinary entries that merging does not reach")
        for name, text in corpora().items():
            raw = text[:MAX_CHARACTERS].replace(BLANK, " ")
            literals = added_tokens(raw, twin)
            found = cut(raw, literals, pairs)
            print(f"  {name}: {shares(found, known)}")
            longest = found.text[found.begins[found.lengths.argmax()] :][:40]
            print(f"    the longest begins {longest!r}")
            for n_bits in (17, 18, 19, 20):
                hashed = cut(raw, literals, pairs, n_bits)
                more = len(found.begins) / len(hashed.begins) - 1
                print(f"    2^{n_bits} bits: {more:.2%} fewer cuts, mean {hashed.lengths.mean():.2f}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["gemma3", "llama2"])
