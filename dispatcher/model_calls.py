"""What goes between a process with a tokenizer and the one that uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dispatcher.special_tokens import SpecialTokens
from dispatcher.tokenizer import TokenizerCounts
from gpu_core.errors import SidetokError
from gpu_core.spec import TokenizerSpec

METHODS = frozenset({"encode", "reference_encode", "decode", "normalize", "tokens_of", "token_to_id"})
"""Those of `Tokenizer` that the process answers. A call is a name and its arguments."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a tokenizer without asking its process."""

    spec: TokenizerSpec
    engine: str
    engine_version: str
    engine_reason: str
    vocab_size: int
    special_tokens: SpecialTokens | None


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one call, or the error that it raises."""

    value: Any
    error: SidetokError | None
    counts: TokenizerCounts
