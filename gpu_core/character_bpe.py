"""The model part of a SentencePiece-style tokenizer.json: BPE over characters, with bytes for those it does not know.

The text between added tokens is one word for the model. The normalizer puts U+2581 in the place of each space and, in
some files, before each piece of text; no pre-tokenizer finds a space after that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.bpe_file import Rules, read_rules
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec

BLANK = "\u2581"
"""What the normalizer writes for a space."""
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
_PREPEND = {"type": "Prepend", "prepend": BLANK}


@dataclass(frozen=True)
class CharacterBpe:
    """A BPE model over characters of normalized text."""

    entries: dict[str, int]
    """The vocabulary without what holds a space, which no normalized text does."""
    byte_ids: NDArray[np.uint32]
    """Id of each byte of a character that is no entry, shape (256,). No rule joins them."""
    rules: Rules
    prepends: bool
    """Whether a `BLANK` comes before each piece of text that is not empty."""

    @cached_property
    def characters(self) -> dict[str, int]:
        """The entries of one character: the symbols that merging begins with."""
        return {content: i for content, i in self.entries.items() if len(content) == 1}

    @cached_property
    def joined_pairs(self) -> frozenset[tuple[str, str]]:
        """Characters (x, y) such that a rule has a left part that ends in x and a right part that begins with y.

        Between any other two neighbours no token lies across: the merge that brought it there would be such a rule. A
        character that is no entry becomes bytes and joins nothing.
        """
        contents = {i: content for content, i in self.entries.items()}
        known = self.characters
        rows = zip(self.rules.left.tolist(), self.rules.right.tolist(), strict=True)
        pairs = {(contents[left][-1], contents[right][0]) for left, right in rows if left in contents}
        return frozenset((x, y) for x, y in pairs if x in known and y in known)


def check_character_bpe(spec: TokenizerSpec) -> None:
    """Raises `UnsupportedTokenizer` with the reason when the rules of this module do not describe the tokenizer."""
    if spec.model_type != "BPE" or spec.pattern_family != "sentencepiece" or spec.byte_level:
        raise UnsupportedTokenizer("not a BPE over characters with one word between added tokens")
    if spec.dropout > 0:
        raise UnsupportedTokenizer("dropout")
    if spec.ignore_merges:
        raise UnsupportedTokenizer("a lookup of the whole text before any merge")
    if spec.continuing_subword_prefix or spec.end_of_word_suffix:
        raise UnsupportedTokenizer("a prefix or suffix that marks parts of words")
    if not spec.byte_fallback:
        raise UnsupportedTokenizer("no bytes for unknown characters")


def read_character_bpe(data: bytes, spec: TokenizerSpec) -> CharacterBpe:
    """Read a tokenizer.json that `read_spec` has accepted. Raises `UnsupportedTokenizer` with the reason."""
    check_character_bpe(spec)
    file: dict[str, Any] = json.loads(data)
    prepends = _prepends(file.get("normalizer"))
    vocab: dict[str, int] = file["model"]["vocab"]
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    # With an id for every byte there is no unknown character, so it does not matter whether unknown ones are fused.
    missing = sum(name not in vocab for name in names)
    if missing:
        raise UnsupportedTokenizer(f"the vocabulary lacks {missing} of the 256 bytes for unknown characters")
    byte_ids = np.array([vocab[name] for name in names], dtype=np.uint32)
    rules = read_rules(file["model"]["merges"], vocab)
    if np.isin(rules.left, byte_ids).any() or np.isin(rules.right, byte_ids).any():
        raise UnsupportedTokenizer("merges of the bytes of unknown characters")
    entries = {content: i for content, i in vocab.items() if content and " " not in content}
    return CharacterBpe(entries, byte_ids, rules, prepends)


def _prepends(normalizer: Any) -> bool:
    """Whether the normalizer also prepends; only the two usual ones are known."""
    steps = normalizer.get("normalizers") if (normalizer or {}).get("type") == "Sequence" else [normalizer]
    if steps not in ([_REPLACE], [_PREPEND, _REPLACE]):
        raise UnsupportedTokenizer("a normalizer that does more than to write U+2581 for spaces")
    return len(steps) == 2
