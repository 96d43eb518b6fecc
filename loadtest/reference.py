"""The judge of ids: the `tokenizers` library on a tokenizer file, as the service uses it."""

from __future__ import annotations

from tokenizers import Tokenizer


def load_reference(file: bytes) -> Tokenizer:
    """The reference for the bytes of a tokenizer.json; what the file says of truncation and padding does not apply.

    Raises the library's plain exceptions for what it cannot read.
    """
    tokenizer = Tokenizer.from_str(file.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
