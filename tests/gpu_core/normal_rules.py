"""When a context of a device brings text into normal form at once, and what nothing may follow."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, cast

from gpu_core.doubts import EXPLORED, Doubts
from gpu_core.encoder import Encoder
from gpu_core.layout import FLAG_DECIMALS, FLAG_IDS, FLAG_NORMAL_FORM, FLAG_TOKEN_STARTS

DOUBTFUL, PLAIN = "Cafe\u0301 ".encode() * 9, b"Coffee " * 9
OFTEN = 3 * EXPLORED
GROWING = "\U0001d160 ".encode() * 700
"""Its normal form has more ids than it has bytes."""
BATCHES = (
    ["e\u0301".encode() * (1 + n % 3) for n in range(40)],
    [*["e\u0301".encode()] * 39, DOUBTFUL * 30],
    [GROWING],
    [GROWING, PLAIN, GROWING[:400], DOUBTFUL * 3],
)
"""Of documents whose number stays while their bytes do not."""


class Certain(Doubts):
    """Knows that no text is in normal form."""

    def are_likely(self, n_bytes: int) -> bool:
        """Always."""
        return True


class Rules:
    """A context of its own, whose tokenizer has not seen any text."""

    def __init__(self, encoder: Encoder) -> None:
        self._device = cast(Any, encoder.device)
        self._size = encoder.ladder.top
        self._device.normal_forms.doubts = Doubts()
        self._context: Any = self._device.context(self._size)
        self.wrong: list[str] = []

    def check(self) -> None:
        """All of them, from a tokenizer that has seen nothing to one whose texts are plain again."""
        self._expect("text that is not in normal form: at once", self._n_at_once(DOUBTFUL), OFTEN - 4 - 3, OFTEN - 4)
        for flags in (FLAG_IDS | FLAG_NORMAL_FORM, FLAG_IDS | FLAG_TOKEN_STARTS):
            self._expect(f"flags {flags}: at once", self._n_at_once(DOUBTFUL, flags), 0, 0)
            self._expect(f"flags {flags}: goes on", self._context.launch_normalized(), 0, 0)
        self._expect("plain text: at once", self._n_at_once(PLAIN), 1, 2 * EXPLORED + 1)
        self._expect("more of it: at once", self._n_at_once(PLAIN), 0, 0)
        self._check_what_nothing_follows()
        self._check_changing_batches()

    def _check_changing_batches(self) -> None:
        """At once on the same memory, or by two replays on their own: one is as good as the other."""
        for flags in (FLAG_IDS, FLAG_DECIMALS, 0):
            self._device.normal_forms.doubts = Doubts()
            own = [self._answers(self._device.context(self._size), batch, flags) for batch in BATCHES]
            self._device.normal_forms.doubts = Certain()
            for number, batch in enumerate(BATCHES):
                is_equal = self._answers(self._context, batch, flags) == own[number]
                self._expect(f"batch {number} with flags {flags}: at once", self._context.in_normal_form, 1, 1)
                self._expect(f"batch {number} with flags {flags}: equal", is_equal, 1, 1)
        self._expect("memory: is kept", self._context._normal is not None, 1, 1)
        self._context.piece_places()[:1] = 0
        self._context.launch_pieces(len(PLAIN), 1, FLAG_IDS)
        self._context.block()
        self._expect("pieces: in normal form", self._context.in_normal_form, 0, 0)

    def _answers(self, context: Any, batch: list[bytes], flags: int) -> tuple[list[int], list[int], bytes]:
        """Where the ids of each document begin, ids, decimals."""
        n_bytes, n_documents = sum(map(len, batch)), len(batch)
        context.text[:n_bytes] = b"".join(batch)
        context.document_starts[: n_documents + 1] = [0, *accumulate(map(len, batch))]
        context.launch(n_bytes, n_documents, flags, False)
        context.block()
        while context.any_flagged() and context.launch_normalized():
            context.block()
        self._expect("documents: are left", context.any_flagged(), 0, 0)
        tokens = context.document_tokens[: n_documents + 1].tolist()
        self._expect("ids: of the last document end", tokens[-1], context.n_tokens(), context.n_tokens())
        decimals = bytes(context.decimals[: context.document_decimals[n_documents]]) if flags & FLAG_DECIMALS else b""
        return tokens, context.ids[: tokens[-1]].tolist() if flags else [], decimals

    def _check_what_nothing_follows(self) -> None:
        self._replay(DOUBTFUL, FLAG_IDS | FLAG_TOKEN_STARTS)
        self._replay(PLAIN, FLAG_IDS)
        self._expect("behind plain text: goes on", self._context.launch_normalized(), 0, 0)
        self._replay(DOUBTFUL, FLAG_IDS)
        self._context.piece_places()[:1] = 0
        self._context.launch_pieces(len(DOUBTFUL), 1, FLAG_IDS)
        self._context.block()
        self._expect("pieces: are left", self._context.any_flagged(), 1, 1)
        self._expect("pieces: goes on", self._context.launch_normalized(), 0, 0)

    def _n_at_once(self, text: bytes, flags: int = FLAG_IDS) -> int:
        """Of many replays of a text, those that are over its normal form from the beginning."""
        n = 0
        for _ in range(OFTEN):
            self._replay(text, flags)
            n += self._context.in_normal_form
            if self._context.any_flagged() and flags == FLAG_IDS and self._context.launch_normalized():
                self._context.block()
        return n

    def _replay(self, text: bytes, flags: int) -> None:
        self._context.text[: len(text)], self._context.document_starts[:2] = text, (0, len(text))
        self._context.launch(len(text), 1, flags, False)
        self._context.block()

    def _expect(self, what: str, got: int, least: int, most: int) -> None:
        if not least <= got <= most:
            self.wrong.append(f"{what}: {got} instead of {least} to {most}")
