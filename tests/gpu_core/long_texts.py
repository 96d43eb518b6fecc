"""Texts with pre-tokens that are too long for the device."""

from __future__ import annotations

import random
from collections.abc import Callable

from gpu_core.layout import MAX_PRETOKEN

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Run = Callable[[random.Random, int], str]
RUNS: dict[str, Run] = {
    "one letter": lambda rng, n: rng.choice("aAeé中한я") * n,
    "letters": lambda rng, n: "".join(rng.choices(LETTERS, k=n)),
    "letters of two bytes": lambda rng, n: "".join(rng.choices("éèабв", k=n)),
    "ascii, then others": lambda rng, n: "ab" * (n // 4) + "é" * (n // 2),
    "others, then ascii": lambda rng, n: "é" * (n // 2) + "ab" * (n // 4),
    "period of three": lambda rng, n: "abc" * (n // 3),
    "cjk": lambda rng, n: "".join(rng.choices("中文字符你好世界", k=n)),
    "one sign": lambda rng, n: rng.choice("=-#*._~'/") * n,
    "signs": lambda rng, n: "".join(rng.choices("=-#*./\\'\"!?", k=n)),
    "marks": lambda rng, n: "\u0308" * n,
    "blanks": lambda rng, n: " " * n,
    "tabs": lambda rng, n: "\t" * n,
    "line ends": lambda rng, n: "\n" * n,
    "line ends and blanks": lambda rng, n: "\n " * (n // 2),
    "any white space": lambda rng, n: "".join(rng.choices(" \n\t\u3000", k=n)),
    "digits": lambda rng, n: "".join(rng.choices("0123456789", k=n)),
}
BESIDE = ["", " ", "x", "'", "'s", "\n", "!", "= ", "12", "é", "!a", "\u0308", "\r\n", "  ", "中"]
LENGTHS = (MAX_PRETOKEN + 1, 700, 1000, 1900)


def random_text(rng: random.Random, kind: str, literals: list[str], lengths: tuple[int, ...] = LENGTHS) -> str:
    """One or two long runs of these lengths with something on both sides."""
    beside = [*BESIDE, *literals]
    parts = []
    for _ in range(rng.choice((1, 1, 2))):
        run = RUNS[kind](rng, rng.choice(lengths))
        parts += [rng.choice(beside), run, rng.choice(beside)]
    return "".join(parts)
