"""Every chat template at hand renders every conversation of the matrix as transformers does: same text, same ids."""

from __future__ import annotations

import importlib.util
import json

import pytest
import tokenizers

from service.chat import ChatTemplate
from service.errors import ChatTemplateError
from tests.service.chat_matrix import (
    OWN_TEMPLATES,
    REFUSED,
    VECTORS,
    Case,
    cases,
    digest,
    models_with_templates,
)
from tests.service.small_model import SPECIAL_TOKENS, tokenizer_json


class Rendered:
    """One template of this service, with the tokenizer of its model."""

    def __init__(self, source: str, special_tokens: dict[str, str], tokenizer: bytes) -> None:
        self.source, self.special_tokens, self.tokenizer_json = source, special_tokens, tokenizer
        self._template = ChatTemplate({"default": source}, special_tokens)
        self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer.decode())

    def render(self, case: Case) -> tuple[str, list[int] | None]:
        """The text and the ids; `REFUSED` where there is an error."""
        try:
            text = self._template.render(case.messages, **case.options)
        except ChatTemplateError:
            return REFUSED, None
        return text, self._tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rendered]:
    """Those of the models at hand, and our own."""
    found = {name: Rendered(source, SPECIAL_TOKENS, tokenizer_json()) for name, source in OWN_TEMPLATES.items()}
    for name, files in models_with_templates(tmp_path_factory.mktemp("models")).items():
        found[name] = Rendered(files.chat_templates["default"], files.special_tokens, files.tokenizer_json)
    return found


def test_equal_to_the_recorded_reference(templates: dict[str, Rendered]) -> None:
    """Hashes of what transformers gave; a template without vectors is an error: scripts/make_chat_vectors.py."""
    vectors = json.loads(VECTORS.read_bytes())
    for name, template in templates.items():
        found = {case.name: digest(*template.render(case)) for case in cases()}
        assert found == vectors[name], name


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_equal_to_the_reference(templates: dict[str, Rendered]) -> None:
    """The same, asked of transformers itself, where a difference can be read."""
    from tests.service.chat_reference import Reference

    for name, template in templates.items():
        reference = Reference(template.source, template.special_tokens, template.tokenizer_json)
        for case in cases():
            assert template.render(case) == reference.render(case), f"{name}: {case.name}"


def test_the_vectors_say_something() -> None:
    """Most conversations are rendered, some are refused, and options change the text."""
    vectors = json.loads(VECTORS.read_bytes())
    assert set(OWN_TEMPLATES) <= set(vectors)
    for name, found in vectors.items():
        assert list(found) == [case.name for case in cases()], name
        assert sum(value == REFUSED for value in found.values()) < len(found) / 2
        assert found["turns, plain"] != found["user, plain"]
