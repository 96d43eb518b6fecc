"""The judge of ids."""

from __future__ import annotations

from tokenizers import Tokenizer

from loadtest.reference import load_reference
from tests.synthetic import SYNTHETIC


def test_settings_of_a_file_do_not_apply() -> None:
    """A file that was saved with truncation and padding is judged without them."""
    tokenizer = Tokenizer.from_str(SYNTHETIC["byte_bpe"]().decode())
    whole = tokenizer.encode("one two three").ids
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    assert load_reference(tokenizer.to_str().encode()).encode("one two three").ids == whole
