"""From the ids of a document, whichever exact engine they come from, to the result that a request asked for."""

from __future__ import annotations

from dispatcher.engines.reference_engine import room_for
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.special_tokens import SpecialTokens

NO_SPECIAL_TOKENS = SpecialTokens()


class Finisher:
    """Cuts to `max_tokens`, adds special tokens, drops the ids of a mere count. One for each set of options."""

    __slots__ = ("_after", "_around", "_before", "_count_only", "_from_left", "_n_special", "_room", "changes_nothing")

    def __init__(self, special_tokens: SpecialTokens, options: EncodeOptions) -> None:
        """`special_tokens` are the tokenizer's. Raises `InvalidOption` when `max_tokens` has no room for them."""
        if not options.add_special_tokens:
            special_tokens = NO_SPECIAL_TOKENS
        self._room = room_for(options, special_tokens.n_tokens)
        self._before, self._after = special_tokens
        self._around = b"".join(b"%d," % i for i in _ids(self._before)), b"".join(b",%d" % i for i in _ids(self._after))
        self._n_special = special_tokens.n_tokens
        self._count_only = options.count_only
        self._from_left = options.truncation_side == "left"
        self.changes_nothing = not self._n_special and self._room is None and not options.count_only
        """The ids of the document are the result."""

    def finish(self, ids: bytes) -> EncodedDocument:
        """The result of a document with these ids (packed little-endian uint32, no special tokens)."""
        if self.changes_nothing:
            return EncodedDocument(ids, len(ids) >> 2)
        return self.finish_view(ids, len(ids) >> 2)

    def decimals(self, text: bytes) -> tuple[bytes, ...]:
        """For a document whose ids are this as decimal numbers with commas between them: the same of its result, in
        pieces, if that is made of all of them; none where only a count is wanted."""
        if self._count_only:
            return ()
        return tuple(filter(None, (self._around[0], text, self._around[1])))

    def listed(self, decimals: bytes, n_tokens: int) -> EncodedDocument | None:
        """The result of a document with so many ids, which are listed only. None where some are cut off."""
        if self._room is not None and n_tokens > self._room:
            return None
        return EncodedDocument(b"", n_tokens + self._n_special, decimals=self.decimals(decimals))

    def finish_view(self, ids: bytes | memoryview, n_tokens: int) -> EncodedDocument:
        """The same for ids that may lie in memory of somebody else: what is kept of them is copied.

        `ids` may be empty when only a count is wanted.
        """
        room = self._room
        truncated = room is not None and n_tokens > room
        if truncated:
            assert room is not None
            if not self._count_only:
                ids = ids[(n_tokens - room) << 2 :] if self._from_left else ids[: room << 2]
            n_tokens = room
        n_tokens += self._n_special
        if self._count_only:
            return EncodedDocument(b"", n_tokens, truncated)
        return EncodedDocument(b"".join((self._before, ids, self._after)), n_tokens, truncated)


def _ids(packed: bytes) -> tuple[int, ...]:
    return tuple(memoryview(packed).cast("I"))
