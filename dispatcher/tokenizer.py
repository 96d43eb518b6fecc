"""One loaded tokenizer: exact ids from the fastest proven engine, everything else from the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatcher.engines import CpuEngine, is_fault
from dispatcher.engines.fastokens_engine import FastokensEngine
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.errors import InvalidOption, InvalidText
from dispatcher.request import EncodedDocument, EncodeOptions
from gpu_core.spec import TokenizerSpec, read_spec


class Tokenizer:
    """Thread-safe; the state that changes is counters only."""

    def __init__(self, spec: TokenizerSpec, reference: ReferenceEngine, engine: CpuEngine, engine_reason: str) -> None:
        self.spec = spec
        self.engine = engine.name
        self.engine_reason = engine_reason
        self.vocab_size: int = reference.full.get_vocab_size(with_added_tokens=True)
        self.max_id = spec.max_id
        self._engine = engine
        self._reference = reference

    def encode(self, documents: list[str], options: EncodeOptions) -> list[EncodedDocument]:
        return [self._encode(document, options, self._engine) for document in documents]

    def reference_encode(self, document: str, options: EncodeOptions) -> EncodedDocument:
        return self._encode(document, options, self._reference)

    def decode(self, sequences: list[NDArray[np.uint32]], skip_special_tokens: bool) -> list[str]:
        ids = [sequence.tolist() for sequence in sequences]
        return self._reference.full.decode_batch(ids, skip_special_tokens=skip_special_tokens)

    def tokens_of(self, ids: NDArray[np.uint32]) -> list[str | None]:
        token_of = self._reference.full.id_to_token
        return [token_of(i) for i in ids.tolist()]

    def token_to_id(self, token: str) -> int | None:
        return self._reference.full.token_to_id(token)

    def counters(self) -> dict[str, dict[str, int]]:
        return {"documents": {}, "guarded": {}, "faults": {}}

    def _encode(self, document: str, options: EncodeOptions, engine: CpuEngine) -> EncodedDocument:
        try:
            if options.ids_only and not options.add_special_tokens and engine.guard(document) is None:
                ids = engine.encode(document)
                return self._cut(ids, options)
        except BaseException as error:
            if not is_fault(error):
                raise
        try:
            document.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(f"the text has a lone surrogate at character {error.start}") from None
        return self._reference_document(document, options)

    @staticmethod
    def _cut(ids: bytes, options: EncodeOptions) -> EncodedDocument:
        n, limit = len(ids) // 4, options.max_tokens
        if limit is None or n <= limit:
            return EncodedDocument(b"" if options.count_only else ids, n)
        ids = ids[: 4 * limit] if options.truncation_side == "right" else ids[4 * (n - limit) :]
        return EncodedDocument(b"" if options.count_only else ids, limit, True)

    def _reference_document(self, document: str, options: EncodeOptions) -> EncodedDocument:
        full = self._reference.full
        encoding = full.encode_batch([document], add_special_tokens=False)[0]
        truncated = False
        if options.max_tokens is not None:
            room = options.max_tokens
            if options.add_special_tokens:
                room -= full.num_special_tokens_to_add(False)
            if room < 0:
                raise InvalidOption("max_tokens is smaller than the number of special tokens")
            truncated = len(encoding) > room
            encoding.truncate(room, direction=options.truncation_side)
        if options.add_special_tokens:
            encoding = full.post_process(encoding)
        result = EncodedDocument(np.array(encoding.ids, dtype="<u4").tobytes(), len(encoding), truncated)
        if options.char_offsets or options.byte_offsets:
            offsets = np.array(encoding.offsets, dtype=np.uint32).reshape(-1, 2)
            if options.char_offsets:
                result.char_offsets = offsets
            if options.byte_offsets:
                widths = np.array([0] + [len(c.encode()) for c in document], dtype=np.uint32).cumsum(dtype=np.uint32)
                result.byte_offsets = widths[offsets]
        if options.token_strings:
            result.token_strings = encoding.tokens
        if options.special_tokens_mask:
            result.special_tokens_mask = np.array(encoding.special_tokens_mask, dtype=np.uint8)
        if options.count_only:
            result.ids = b""
        return result


def load_tokenizer(data: bytes, *, engine: str = "auto", cache_dir: Path | None = None) -> Tokenizer:
    """Load the bytes of a tokenizer.json. Raises `TokenizerFileError` with the reason."""
    spec = read_spec(data)
    reference = ReferenceEngine(data.decode())
    if engine in {"auto", "fastokens"}:
        try:
            return Tokenizer(spec, reference, FastokensEngine(data.decode()), "loaded")
        except BaseException as error:
            if not is_fault(error):
                raise
    return Tokenizer(spec, reference, reference, "no faster engine loads the file")
