"""Random texts of everything that the stages treat specially."""

from __future__ import annotations

import random

POOL = [
    *"abcstrevldmSTRE  '''1234.,!-=\t\n\r",
    *(
        "\r\n",
        "\u3000",
        "\u00a0",
        "\x85",
        "ſ",
        "'s",
        "'LL",
        "'ſ",
        "é",
        "中文",
        "ー",
        "²",
        "٣",
        "\u0301",
        "\x01",
        "😀",
        "한",
    ),
]


def random_text(rng: random.Random, literals: list[str], n: int) -> str:
    """A text of `n` characters with runs of all lengths, whole added tokens and beginnings of added tokens."""
    parts: list[str] = []
    while sum(map(len, parts)) < n:
        kind = rng.random()
        if kind < 0.05 and literals:
            literal = rng.choice(literals)
            parts.append(literal if rng.random() < 0.8 else literal[: rng.randint(1, len(literal))])
        elif kind < 0.12:
            parts.append(rng.choice(POOL) * rng.choice((2, 3, 7, 33, 64, 65, 130)))
        else:
            parts.append("".join(rng.choices(POOL, k=rng.randint(1, 12))))
    return "".join(parts)[:n]
