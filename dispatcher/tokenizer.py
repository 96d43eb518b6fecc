"""One loaded tokenizer: ids from the fastest engine that is proven exact, everything else from the reference."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatcher.engines import CpuEngine, is_fault
from dispatcher.engines.choice import choose_engine
from dispatcher.engines.piecewise_engine import PiecewiseEngine
from dispatcher.engines.reference_engine import ReferenceEngine, ids_of, offsets_of
from dispatcher.errors import InvalidText, TextTooLarge
from dispatcher.finisher import Finisher
from dispatcher.offsets import byte_offsets
from dispatcher.pieces import Cutter, cutter_of
from dispatcher.proof import ProofCache
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.special_tokens import learn_special_tokens
from dispatcher.tally import Tally
from gpu_core.spec import TokenizerSpec, read_spec

LARGE_CHARS = 1 << 20
"""Longer documents go through the reference one at a time: it takes up to 150 bytes of memory for each byte of text."""
PIECE_BYTES = 1 << 20
"""Where only ids are wanted and exact cuts are known, the reference gets long documents in pieces of this size."""


@dataclass(frozen=True, slots=True)
class TokenizerCounts:
    """What a tokenizer did since it was loaded, in documents."""

    documents: dict[str, int]
    """By the engine that answered."""
    guarded: dict[str, int]
    """Sent to the reference because the engine is known to differ on their kind; by the kind."""
    engine_faults: int
    """Answered by the reference because the engine failed."""


class Tokenizer:
    """Encodes and decodes with one tokenizer file. Every method may be called from any number of threads.

    `engine` is the name of the engine that answers requests for ids, `engine_reason` why it is this one. Requests for
    offsets, strings or masks are answered by the reference.
    """

    _cutter: Cutter | None = None

    def __init__(
        self,
        spec: TokenizerSpec,
        reference: ReferenceEngine,
        engine: CpuEngine,
        engine_reason: str,
        max_reference_bytes: int = 0,
    ) -> None:
        """`max_reference_bytes` is the longest document that the reference gets as a whole; 0 = any."""
        self.spec = spec
        self.engine = engine.name
        self.engine_version = engine.version
        self.engine_reason = engine_reason
        self.vocab_size: int = reference.tokenizer.get_vocab_size(with_added_tokens=True)
        self.max_id = spec.max_id
        self._reference = reference
        self._engine_is_reference = engine.name == "reference"
        self._max_reference_bytes = max_reference_bytes
        self.special_tokens = learn_special_tokens(reference, spec)
        self._last_finisher: tuple[EncodeOptions | None, Finisher | None] = None, None
        self._cutter = cutter_of(spec, PIECE_BYTES)
        self._guard = engine.guard
        self._engine_encode = engine.encode
        self._engine_encode_many = engine.encode_many
        self._by_engine = Tally()
        self._by_reference = Tally()
        self._faults = Tally()
        self._guarded: Counter[str] = Counter()
        self._lock = threading.Lock()

    def encode(self, documents: Sequence[str], options: EncodeOptions) -> list[EncodedDocument]:
        """Encode each document. Raises `InvalidText` for a lone surrogate, and `InvalidOption`.

        Documents that the engine may not or could not answer are answered by the reference.
        """
        finisher = self.finisher(options)
        if finisher is None:
            return [self._count_reference(document, options) for document in documents]
        if len(documents) == 1:
            (document,) = documents
            ids = self._ids(document)
            return [self._without_engine(document, options, finisher) if ids is None else finisher.finish(ids)]
        return [
            self._without_engine(document, options, finisher) if ids is None else finisher.finish(ids)
            for document, ids in zip(documents, self._ids_of([*documents]), strict=True)
        ]

    def halves(self, document: str) -> tuple[str, str] | None:
        """A long document in two, for `half_ids` and `joined`; None where it stays whole."""
        if self._cutter is None or self._engine_is_reference:
            return None
        return self._cutter.halves(document) if document.isascii() or self._guard(document) is None else None

    def half_ids(self, half: str) -> bytes:
        """The engine's ids; raises whatever the engine does."""
        return self._engine_encode(half)

    def joined(self, ids: tuple[bytes, bytes], options: EncodeOptions) -> EncodedDocument:
        """The result of a document from the ids of its halves. Only for options that have a finisher."""
        finisher = self.finisher(options)
        assert finisher is not None
        self._by_engine.add()
        return finisher.finish(b"".join(ids))

    def finisher(self, options: EncodeOptions) -> Finisher | None:
        """What turns ids from any exact engine into the results of a request; None if only the reference can answer it.

        Raises `InvalidOption`.
        """
        known, finisher = self._last_finisher
        if known is not options:
            special_tokens = self.special_tokens if options.ids_only else None
            finisher = None if special_tokens is None else Finisher(special_tokens, options)
            self._last_finisher = options, finisher
        return finisher

    def reference_encode(self, document: str, options: EncodeOptions) -> EncodedDocument:
        """The judge's answer: nothing but the reference takes part, and nothing is counted.

        Raises `TextTooLarge` for a document that would take too much memory.
        """
        self._check_size(document)
        if len(document) <= LARGE_CHARS:
            return self._judge(document, options)
        with _one_large:
            return self._judge(document, options)

    def _check_size(self, document: str) -> None:
        limit = self._max_reference_bytes
        if limit and (len(document) > limit or (4 * len(document) > limit and _n_bytes(document) > limit)):
            raise TextTooLarge(
                f"A document of this kind is answered by the reference engine, which takes at most {limit} bytes: "
                "split it, ask for ids only, or raise --max-reference-bytes."
            )

    def _judge(self, document: str, options: EncodeOptions) -> EncodedDocument:
        try:
            encoding, truncated = self._reference.encoding(document, options)
        except BaseException as error:
            if is_fault(error):
                _check_text(document)
            raise
        result = EncodedDocument(b"" if options.count_only else ids_of(encoding), len(encoding), truncated)
        if options.char_offsets or options.byte_offsets:
            offsets = offsets_of(encoding)
            result.char_offsets = offsets if options.char_offsets else None
            result.byte_offsets = byte_offsets(document, offsets) if options.byte_offsets else None
        if options.token_strings:
            result.token_strings = encoding.tokens
        if options.special_tokens_mask:
            result.special_tokens_mask = np.array(encoding.special_tokens_mask, dtype=np.uint8)
        return result

    def decode(self, sequences: list[NDArray[np.uint32]], skip_special_tokens: bool) -> list[str]:
        """The reference's text of each sequence. It leaves out ids that the tokenizer does not have."""
        ids = [sequence.tolist() for sequence in sequences]
        texts: list[str] = self._reference.tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens)
        return texts

    def normalize(self, text: str) -> str:
        """The text as the reference's normalizer leaves it."""
        normalizer = self._reference.tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def tokens_of(self, ids: NDArray[np.uint32]) -> list[str | None]:
        """The vocabulary's string of each id; None for ids that the tokenizer does not have."""
        token_of = self._reference.tokenizer.id_to_token
        return [token_of(i) for i in ids.tolist()]

    def token_to_id(self, token: str) -> int | None:
        """The id of a string of the vocabulary or of an added token."""
        token_id: int | None = self._reference.tokenizer.token_to_id(token)
        return token_id

    def counters(self) -> TokenizerCounts:
        """A snapshot; callable from any thread."""
        documents = Counter({self.engine: self._by_engine.value})
        documents["reference"] += self._by_reference.value
        with self._lock:
            guarded = dict(self._guarded)
        return TokenizerCounts(dict(documents), guarded, self._faults.value)

    def _ids_of(self, documents: list[str]) -> list[bytes | None]:
        """`_ids` of each document; in one call where none is guarded and none fails."""
        try:
            large = self._engine_is_reference and any(len(document) > LARGE_CHARS for document in documents)
            if not large and all(document.isascii() or self._guard(document) is None for document in documents):
                many: list[bytes | None] = [*self._engine_encode_many(documents)]
                self._by_engine.add_many(len(documents))
                return many
        except BaseException as error:
            # Each for itself, below, will show which one it was.
            if not is_fault(error):
                raise
        return [self._ids(document) for document in documents]

    def _ids(self, document: str) -> bytes | None:
        """The engine's ids without special tokens; None when the reference has to answer."""
        if self._engine_is_reference and len(document) > LARGE_CHARS:
            return None
        try:
            if document.isascii() or (kind := self._guard(document)) is None:
                ids = self._engine_encode(document)
                self._by_engine.add()
                return ids
        except BaseException as error:
            if not is_fault(error):
                raise
            _check_text(document)
            self._faults.add()
            return None
        with self._lock:
            self._guarded[kind] += 1
        return None

    def _without_engine(self, document: str, options: EncodeOptions, finisher: Finisher) -> EncodedDocument:
        """The reference's result; of a long document in pieces, where cuts are known."""
        if len(document) <= LARGE_CHARS or self._cutter is None:
            return self._count_reference(document, options)
        _check_text(document)
        pieces = self._cutter.pieces(document)
        if pieces is None:
            return self._count_reference(document, options)
        ids = b"".join([self._piece_ids(piece) for piece in pieces])
        self._by_reference.add()
        return finisher.finish(ids)

    def _piece_ids(self, piece: str) -> bytes:
        """The engine's ids, where it may answer; nothing is counted."""
        if not self._engine_is_reference:
            try:
                if piece.isascii() or self._guard(piece) is None:
                    return self._engine_encode(piece)
            except BaseException as error:
                if not is_fault(error):
                    raise
        return self._reference.encode(piece)

    def _count_reference(self, document: str, options: EncodeOptions) -> EncodedDocument:
        result = self.reference_encode(document, options)
        self._by_reference.add()
        return result


_one_large = threading.Lock()
"""One for all tokenizers, since they share the memory."""


def load_tokenizer(
    data: bytes, *, engine: str = "auto", cache_dir: Path | None, max_reference_bytes: int = 0
) -> Tokenizer:
    """Load the bytes of a tokenizer.json and prove the engine that is to serve it.

    `engine` is auto, fastokens, gigatoken or reference; one that fails to load or to be proven is replaced, and
    `engine_reason` says so. `cache_dir` keeps proofs; None proves at each load. `max_reference_bytes`: see `Tokenizer`.
    Raises `TokenizerFileError` with the reason.
    """
    spec = read_spec(data)
    text = data.decode()
    reference = ReferenceEngine(text)
    choice = choose_engine(engine, text, spec, reference, ProofCache(cache_dir))
    fast = choice.engine if choice.engine is reference else PiecewiseEngine(choice.engine, spec, data)
    return Tokenizer(spec, reference, fast, choice.reason, max_reference_bytes)


def _n_bytes(document: str) -> int:
    return len(document.encode(errors="surrogatepass"))


def _check_text(document: str) -> None:
    """Raise `InvalidText` if a document was the fault of what went wrong."""
    try:
        document.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(f"the text has a lone surrogate at character {error.start}") from None
