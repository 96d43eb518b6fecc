"""What a post-processor adds around the ids of a document, learned from the reference itself."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.engines.reference_engine import ReferenceEngine, ids_of
from dispatcher.request import EncodeOptions
from gpu_core.spec import TokenizerSpec

PROBES = ("a", "Hello, world!", " 1 2\n", "\u00e9\u6f22\U0001f600", "x " * 40, "")


class SpecialTokens(NamedTuple):
    """Packed ids that stand before and after those of any document."""

    before: bytes = b""
    after: bytes = b""

    @property
    def n_tokens(self) -> int:
        """How many there are."""
        return (len(self.before) + len(self.after)) // 4


def learn_special_tokens(reference: ReferenceEngine, spec: TokenizerSpec) -> SpecialTokens | None:
    """The fixed ids around every document; None when the post-processor does anything else."""
    texts = (*PROBES, *(f"a{token.content}" for token in spec.added_tokens[:8]))
    if any(reference.encode(text) != reference.encode_bare(text) for text in texts):
        return None
    with_and_without = [(_with_special_tokens(reference, text), reference.encode(text)) for text in texts]
    first, plain = with_and_without[0]
    start = first.find(plain) if plain else -1
    while start >= 0:
        found = SpecialTokens(first[:start], first[start + len(plain) :])
        if all(found.before + plain + found.after == ids for ids, plain in with_and_without):
            return found if found.n_tokens == reference.n_special_tokens else None
        start = first.find(plain, start + 4)
    return None


def _with_special_tokens(reference: ReferenceEngine, text: str) -> bytes:
    encoding, _ = reference.encoding(text, EncodeOptions(add_special_tokens=True))
    return ids_of(encoding)
