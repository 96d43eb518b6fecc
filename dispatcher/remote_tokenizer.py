"""A tokenizer whose work is done by a process of its own, for models that are added while others are served."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dispatcher.model_process import ModelProcess
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.tokenizer import Tokenizer, TokenizerCounts


class RemoteTokenizer(Tokenizer):
    """See `Tokenizer`: the same facts and results; every method is one call of the process.

    The process ends when nobody holds the tokenizer any more: what is under way when its model is removed is answered.
    """

    def __init__(self, process: ModelProcess) -> None:
        """Start the process and load the file. Raises `TokenizerFileError` with the reason, or `EngineFault`."""
        self.process = process
        facts = process.start()
        self.spec = facts.spec
        self.engine = facts.engine
        self.engine_version = facts.engine_version
        self.engine_reason = facts.engine_reason
        self.vocab_size = facts.vocab_size
        self.max_id = facts.spec.max_id
        self.special_tokens = facts.special_tokens
        self._last_finisher = None, None
        weakref.finalize(self, process.close)

    def encode(self, documents: Sequence[str], options: EncodeOptions) -> list[EncodedDocument]:
        """See `Tokenizer`."""
        results: list[EncodedDocument] = self.process.call("encode", [*documents], options)
        return results

    def halves(self, document: str) -> tuple[str, str] | None:
        """See `Tokenizer`: the process takes documents whole."""
        return None

    def reference_encode(self, document: str, options: EncodeOptions) -> EncodedDocument:
        """See `Tokenizer`."""
        result: EncodedDocument = self.process.call("reference_encode", document, options)
        return result

    def decode(self, sequences: list[NDArray[np.uint32]], skip_special_tokens: bool) -> list[str]:
        """See `Tokenizer`."""
        texts: list[str] = self.process.call("decode", sequences, skip_special_tokens)
        return texts

    def normalize(self, text: str) -> str:
        """See `Tokenizer`."""
        normalized: str = self.process.call("normalize", text)
        return normalized

    def tokens_of(self, ids: NDArray[np.uint32]) -> list[str | None]:
        """See `Tokenizer`."""
        tokens: list[str | None] = self.process.call("tokens_of", ids)
        return tokens

    def token_to_id(self, token: str) -> int | None:
        """See `Tokenizer`."""
        token_id: int | None = self.process.call("token_to_id", token)
        return token_id

    def counters(self) -> TokenizerCounts:
        """See `Tokenizer`; what the answers told so far."""
        return self.process.counters()
