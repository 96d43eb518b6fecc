"""Runs of blanks that become tokens by themselves, so that they are cut by counting, like runs of added tokens.

  text           r e t _ _ _ _ _ x        `_` is the plain space, the vocabulary has blanks of 2 to 4
  tokens         ret|_ _ _ _|_ x          pieces of the largest length, then what is left; one blank alone stays text

That is so if every rule of two runs of blanks comes before every other rule of a blank, and no other rule has a run of
two or more: then a run has merged all it can before anything touches it, and what came of it merges no further. The
model cannot tell a U+2581 of the text from a blank, so a run beside one is left to the merges.
"""

from __future__ import annotations

import numpy as np

from gpu_core.character_bpe import BLANK, CharacterBpe
from gpu_core.plain_merge import merge
from gpu_core.run_literals import RunLiteral
from gpu_core.spec import TokenizerSpec

MAX_BLANKS = 32
"""Blanks of the longest token; the kernel's `MAX_TEXT_RUN`."""


def blank_run(model: CharacterBpe, spec: TokenizerSpec) -> RunLiteral | None:
    """The runs of plain spaces, if the rules are such; None if they are not, or a space is in an added token."""
    used = {*model.rules.left.tolist(), *model.rules.right.tolist(), *model.rules.product.tolist()}
    lengths = {i: len(content) for content, i in model.entries.items() if i in used and not content.strip(BLANK)}
    longest = len(lengths)
    is_usual = not model.prepends and not any(" " in token.content for token in spec.added_tokens)
    if not is_usual or not 2 <= longest <= MAX_BLANKS or sorted(lengths.values()) != list(range(1, longest + 1)):
        return None
    left, right = (np.isin(part, list(lengths)) for part in (model.rules.left, model.rules.right))
    several = [i for i, n in lengths.items() if n > 1]
    others = left ^ right
    if (np.isin(model.rules.left, several) | np.isin(model.rules.right, several))[others].any():
        return None
    runs = np.flatnonzero(left & right)
    if not len(runs) or (others.any() and np.flatnonzero(others)[0] < runs[-1]):
        return None
    ids = {n: i for i, n in lengths.items()}
    found = RunLiteral(" ", 2, tuple(ids[n] for n in range(2, longest + 1)))
    parts = model.rules.left[runs].tolist(), model.rules.right[runs].tolist(), model.rules.product[runs].tolist()
    rules = {(a, b): (rank, product) for rank, (a, b, product) in enumerate(zip(*parts, strict=True))}
    # What holds for up to twice the longest token holds for all: tokens that do not join their neighbours stay apart.
    for n in range(2, 2 * longest + 1):
        merged = [lengths[i] for _at, i in merge([(at, ids[1]) for at in range(n)], rules)]
        if merged != [*found.pieces(n), *([1] if n % longest == 1 else [])]:
            return None
    return found
