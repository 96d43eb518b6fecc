"""Long documents in pieces whose ids, one after the other, are those of the whole."""

from __future__ import annotations

from gpu_core.errors import UnsupportedTokenizer
from gpu_core.literals import device_literals
from gpu_core.safe_cut import SafeCuts
from gpu_core.spec import TokenizerSpec
from gpu_core.tables import check_support

HALF_WINDOW = 1024
"""Characters before the middle of a document in which a cut is looked for. As many are seen on either side of these."""


class Cutter:
    """Cuts documents of one tokenizer. See `gpu_core.safe_cut` for why the ids stay the same."""

    def __init__(self, spec: TokenizerSpec, max_bytes: int) -> None:
        """No piece is longer than `max_bytes`. Raises `UnsupportedTokenizer` when no cut is known to be safe."""
        check_support(spec)
        if any(token.single_word or token.lstrip or token.rstrip for token in spec.added_tokens):
            raise UnsupportedTokenizer("added tokens whose match depends on the text around them")
        self._cuts = SafeCuts(spec.pattern_family, device_literals(spec), bool(spec.normalizers))
        self._max_bytes = max_bytes

    def pieces(self, document: str) -> list[str] | None:
        """The document in pieces; None when there is no safe cut where one is needed. It has no lone surrogates."""
        text = document.encode()
        pieces: list[str] = []
        start = 0
        while len(text) - start > self._max_bytes:
            end = self._cuts.last_before(text, start, start + self._max_bytes)
            if end is None:
                return None
            pieces.append(text[start:end].decode())
            start = end
        pieces.append(text[start:].decode())
        return pieces

    def halves(self, document: str) -> tuple[str, str] | None:
        """A long document in two parts of about the same length; None when there is no safe cut near its middle."""
        high = len(document) // 2
        low = high - HALF_WINDOW
        first = low - HALF_WINDOW
        if first < 0 or self._cuts.reach > HALF_WINDOW:
            return None
        try:
            window, margin, middle = (document[first:end].encode() for end in (high + HALF_WINDOW, low, high))
        except UnicodeEncodeError:
            return None
        cut = self._cuts.last_before(window, len(margin), len(middle))
        if cut is None:
            return None
        at = first + len(window[:cut].decode())
        return document[:at], document[at:]


def cutter_of(spec: TokenizerSpec, max_bytes: int) -> Cutter | None:
    """A cutter for a tokenizer, if there is one."""
    try:
        return Cutter(spec, max_bytes)
    except UnsupportedTokenizer:
        return None
