"""Added tokens that are runs of one character, such as 1 to 31 line ends: found by counting, not by comparing.

Each byte of a long run begins an added token, so "the longest at each byte" would overlap everywhere. The reference
takes the leftmost and longest: from the start of a run, pieces of the largest length, then what is left.

  added tokens   x, xx, xxx
  text           a x x x x x b
  taken            3     2
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from gpu_core.literals import device_literals
from gpu_core.spec import AddedToken, TokenizerSpec


@dataclass(frozen=True, slots=True)
class RunLiteral:
    """The added tokens that consist of one character, which is in no other added token."""

    character: str
    shortest: int
    """Characters of the shortest token; there is one of every length up to the longest."""
    ids: tuple[int, ...]
    """Ids by length, from the shortest on."""

    @property
    def longest(self) -> int:
        """Characters of the longest token."""
        return self.shortest + len(self.ids) - 1

    def pieces(self, n_characters: int) -> list[int]:
        """Lengths of the tokens that a run is cut into; up to `shortest - 1` characters behind them stay text."""
        full, rest = divmod(n_characters, self.longest)
        return [self.longest] * full + ([rest] if rest >= self.shortest else [])


def split_literals(spec: TokenizerSpec) -> tuple[list[RunLiteral], dict[bytes, int]]:
    """The runs, and all other added tokens as `device_literals` gives them. It raises `UnsupportedTokenizer`."""
    by_character: dict[str, list[AddedToken]] = defaultdict(list)
    for token in spec.added_tokens:
        for character in set(token.content):
            by_character[character].append(token)
    runs = [
        run for character, tokens in by_character.items() if (run := _run(character, tokens, bool(spec.normalizers)))
    ]
    taken = {run.character for run in runs}
    others = tuple(token for token in spec.added_tokens if token.content[0] not in taken)
    return runs, device_literals(replace(spec, added_tokens=others))


def overlap_free(literals: dict[bytes, int]) -> bool:
    """Whether two of the literals can never share a byte of a text unless both begin at the same one.

    Then the longest at each byte is what the reference takes, without looking at the bytes around.
    """
    starts = {literal[:n] for literal in literals for n in range(1, len(literal) + 1)}
    return not any(
        literal[at:] in starts or any(literal[at:end] in literals for end in range(at + 1, len(literal)))
        for literal in literals
        for at in range(1, len(literal))
    )


def _run(character: str, tokens: list[AddedToken], is_normalizing: bool) -> RunLiteral | None:
    """The tokens that contain a character as a run, if they are one without gaps and flags."""
    by_length = {len(token.content): token for token in tokens}
    shortest = min(by_length)
    if sorted(by_length) != list(range(shortest, shortest + len(tokens))):
        return None
    for token in tokens:
        has_flags = token.single_word or token.lstrip or token.rstrip or (token.normalized and is_normalizing)
        if has_flags or token.content != character * len(token.content):
            return None
    return RunLiteral(character, shortest, tuple(by_length[length].id for length in sorted(by_length)))
