"""The one request type that every dialect and codec is translated into, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dispatcher.late_texts import LateTexts

if TYPE_CHECKING:
    from dispatcher.tokenizer import Tokenizer

TruncationSide = Literal["left", "right"]
Route = Literal["auto", "cpu", "gpu"]
"""Where a request asks to be answered; auto leaves it to the policy."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """What to compute for each document. Defaults are those of the reference `Tokenizer.encode`."""

    add_special_tokens: bool = True
    """Run the file's post-processor (BOS, EOS, ...)."""
    max_tokens: int | None = None
    """Keep at most this many ids, special tokens included; None keeps all."""
    truncation_side: TruncationSide = "right"
    """The side that is cut off when a document is longer than `max_tokens`."""
    char_offsets: bool = False
    byte_offsets: bool = False
    token_strings: bool = False
    special_tokens_mask: bool = False
    count_only: bool = False
    """Only `n_tokens` is wanted; `ids` stays empty."""

    @property
    def ids_only(self) -> bool:
        """Whether nothing that only the reference engine can tell is asked for."""
        return not (self.char_offsets or self.byte_offsets or self.token_strings or self.special_tokens_mask)


@dataclass(slots=True)
class EncodedDocument:
    """The result of one document. Arrays have one row per id, special tokens included."""

    ids: bytes
    """Packed little-endian uint32, 4 bytes per id; empty with `count_only`, or beside `decimals` that suffice."""
    n_tokens: int
    truncated: bool = False
    char_offsets: NDArray[np.uint32] | None = None
    """(n_tokens, 2): start and end in characters (code points) of the document."""
    byte_offsets: NDArray[np.uint32] | None = None
    """(n_tokens, 2): start and end in bytes of the document's UTF-8."""
    token_strings: list[str] | None = None
    special_tokens_mask: NDArray[np.uint8] | None = None
    """(n_tokens,): 1 for ids that the post-processor added."""
    decimals: tuple[bytes, ...] = ()
    """The ids as decimal numbers with commas between them, in pieces, where a GPU wrote them."""


@dataclass(slots=True)
class EncodeRequest:
    """Documents to encode with one tokenizer. `model` is the label in metrics."""

    model: str
    tokenizer: Tokenizer
    documents: Sequence[str]
    """A list, or `LateTexts`."""
    options: EncodeOptions
    n_bytes: int = 0
    """UTF-8 bytes of all documents (may be estimated from the body)."""
    is_batch: bool = False
    """The caller sent a list, so the answer is one, too."""
    route: Route = "auto"
    utf8: Sequence[bytes | memoryview] | None = None
    """The documents as they came, where they came as UTF-8; never looked at once the answer is there."""

    lists_ids: bool = False
    """The answer has ids as decimal numbers, which a GPU may write."""
    reads_ids: bool = True
    """It has use for packed ids, too, where these are there."""
    is_slow_to_write: bool = False
    """The answer takes far more than its ids; see `dispatcher.router.WRITE_BYTES`."""

    @property
    def sample(self) -> str | bytes | memoryview:
        """The first document, as it is."""
        documents = self.documents
        return documents.utf8[0] if isinstance(documents, LateTexts) else documents[0]

    def is_listed(self, results: Sequence[object]) -> bool:
        """Whether a GPU wrote the ids of all results as the answer has them, which leaves little to write."""
        return (
            self.lists_ids
            and not self.is_slow_to_write
            and all([isinstance(result, EncodedDocument) and bool(result.decimals) for result in results])
        )

    def texts(self) -> Sequence[bytes | memoryview]:
        """The documents as UTF-8. Raises `UnicodeEncodeError` for a lone surrogate."""
        documents = self.documents
        if isinstance(documents, LateTexts):
            return documents.utf8
        return [document.encode() for document in documents] if self.utf8 is None else self.utf8


@dataclass(slots=True)
class DecodeRequest:
    """Sequences of ids (uint32 arrays) to decode with one tokenizer."""

    route: ClassVar[Route] = "cpu"
    model: str
    tokenizer: Tokenizer
    sequences: list[NDArray[np.uint32]]
    skip_special_tokens: bool = True
    n_bytes: int = 0
    is_batch: bool = False


Request = EncodeRequest | DecodeRequest
Result = list[EncodedDocument] | list[str]
