"""transformers' `apply_chat_template`, as the reference of chat templates. Imported only where it is installed."""

from __future__ import annotations

from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerFast

from tests.service.chat_matrix import REFUSED, Case


class Reference:
    """One template, with the tokenizer of its model."""

    def __init__(self, source: str, special_tokens: dict[str, str], tokenizer: bytes) -> None:
        loaded = tokenizers.Tokenizer.from_str(tokenizer.decode())
        untyped: Any = PreTrainedTokenizerFast
        self._tokenizer = untyped(tokenizer_object=loaded, **special_tokens)
        self._tokenizer.chat_template = source

    def render(self, case: Case) -> tuple[str, list[int] | None]:
        """The text and the ids of a conversation; `REFUSED` for what the template refuses."""
        options = dict(case.options)
        options |= options.pop("variables", {})
        try:
            text = self._tokenizer.apply_chat_template(case.messages, tokenize=False, **options)
            ids = self._tokenizer.apply_chat_template(case.messages, tokenize=True, return_dict=False, **options)
        except Exception:
            return REFUSED, None
        return text, list(ids)
