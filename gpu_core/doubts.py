"""Whether the next text is brought into normal form at once, or after a replay that says so. Pure decisions, no GPU.

    first, then perhaps second     one kernel, whose work is lost if a document is not in normal form
    in normal form at once         the kernels of the second

Which takes less depends on how often the first is for nothing, and texts of a kind come together.
"""

from __future__ import annotations

N_SIZES = 28
"""Sizes are told apart by their length in bits."""
STEP = 0.25
"""What one replay counts for."""
OFTEN = 0.6
"""From this part of replays on, text goes into normal form at once. That costs less from a quarter on for a megabyte of
text, and from a half on for a KiB (measured on an H200)."""
EXPLORED = 16
"""One of so many of a size goes the other way, to see whether that is still so."""


class Doubts:
    """Of one tokenizer: how many replays were not in normal form lately, by the size of their text."""

    def __init__(self) -> None:
        self._parts = [0.0] * N_SIZES
        self._n_asked = [0] * N_SIZES

    def seen(self, n_bytes: int, is_doubtful: bool) -> None:
        """What a first replay said."""
        at = n_bytes.bit_length()
        self._parts[at] += STEP * (is_doubtful - self._parts[at])

    @property
    def are_any(self) -> bool:
        """Whether text of some size is brought into normal form at once."""
        return max(self._parts) >= OFTEN

    def are_likely(self, n_bytes: int) -> bool:
        """Whether the next replay of so much text is to be over its normal form at once."""
        at = n_bytes.bit_length()
        if self._parts[at] < OFTEN:
            return False
        self._n_asked[at] += 1
        return self._n_asked[at] % EXPLORED != 0
