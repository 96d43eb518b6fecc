"""The reference: the Hugging Face `tokenizers` library. It judges the other engines, and serves what they may not."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
from tokenizers import Encoding, Tokenizer

from gpu_core.errors import TokenizerFileError


class ReferenceEngine:
    """Exact by definition. Of its calls only `encode_batch*` and `decode_batch` release the GIL."""

    name = "reference"
    version = version("tokenizers")

    def __init__(self, text: str) -> None:
        """Load the text of a tokenizer.json. Raises `TokenizerFileError` with the library's reason."""
        try:
            self.full = Tokenizer.from_str(text)
        except BaseException as error:
            raise TokenizerFileError(f"the reference library refuses the file: {str(error)[:200]}") from None
        self.full.no_truncation()
        self.full.no_padding()

    def encode(self, document: str) -> bytes:
        """The ids of the document as the file's rules give them, without special tokens."""
        encoding = self.full.encode_batch_fast([document], add_special_tokens=False)[0]
        return np.array(encoding.ids, dtype="<u4").tobytes()

    def guard(self, document: str) -> str | None:
        """Nothing is withheld from the judge."""
        return None

    def encoding(self, document: str, add_special_tokens: bool) -> Encoding:
        """The reference's own result object, with offsets and strings."""
        return self.full.encode_batch([document], add_special_tokens=add_special_tokens)[0]
