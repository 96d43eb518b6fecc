"""Documents that NFC changes, rewritten so that the device can answer them after all.

    document   Cafe◌́ <|im_end|> a◌̸      gaps fail the quick check; added tokens are searched for before normalization
    rewritten  Café  <|im_end|> a̸       each failing gap normalized by itself; the device encodes this instead

It has the ids of the document if the added tokens that are found in it are those of the document, at the same places:
the reference would then normalize the same gaps, which are in normal form by now.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gpu_core.classes import NOT_NORMAL, normal_form_classes
from gpu_core.spec import TokenizerSpec

Normalize = Callable[[str], str]
"""The reference's normalizer of one gap."""


class Rewriter:
    """Rewrites documents of one tokenizer whose only normalizer is the one given."""

    def __init__(self, spec: TokenizerSpec, normalize: Normalize) -> None:
        self._normalize = normalize
        # The leftmost match, and of those that begin there the longest: alternatives are tried in order.
        tokens = sorted((token.content for token in spec.added_tokens), key=len, reverse=True)
        self._literal = re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None
        self._flagged = {
            token.content for token in spec.added_tokens if token.single_word or token.lstrip or token.rstrip
        }

    def rewrite(self, document: bytes) -> bytes | None:
        """A document with the same ids that passes the quick check; None when there is none, or that is not certain."""
        try:
            text = document.decode()
        except UnicodeDecodeError:
            return None
        parts = self._split(text)
        if not self._flagged.isdisjoint(parts[1::2]):
            return None
        parts[::2] = [gap if passes_quick_check(gap) else self._normalize(gap) for gap in parts[::2]]
        rewritten = "".join(parts)
        if not passes_quick_check(rewritten) or self._split(rewritten) != parts:
            return None
        return rewritten.encode()

    def _split(self, text: str) -> list[str]:
        """Gaps, and the added tokens between them."""
        return self._literal.split(text) if self._literal else [text]


def passes_quick_check(text: str) -> bool:
    """Whether NFC certainly leaves the text alone: no doubtful character, and marks in canonical order."""
    if text.isascii():
        return True
    values = normal_form_classes()[np.frombuffer(text.encode("utf-32-le"), "<u4")]
    before, after = values[:-1], values[1:]
    return not ((values == NOT_NORMAL).any() or ((after > 0) & (before > after)).any())
