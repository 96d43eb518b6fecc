"""llama.cpp's endpoints: texts and ids mixed, pieces, prompts of conversations, its errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from service.dialects.llamacpp import ApplyTemplate, ChatInputTokens, Detokenize, Tokenize
from service.registry import Registry
from tests.service.small_model import SPECIAL_TOKENS, registry_of, send, write_model

BOS, EOS = 256, 257
USER = {"role": "user", "content": "é"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model."""
    return registry_of(f"small={write_model(tmp_path_factory.mktemp('small'))}")


def tokens(registry: Registry, **fields: Any) -> Any:
    """What `/tokenize` answers."""
    answer = send(Tokenize(registry), fields)
    assert answer.status == 200, answer.body
    return orjson.loads(answer.body)["tokens"]


def test_text(registry: Registry) -> None:
    """No special tokens unless asked for; special tokens in the text are found; nothing gives nothing."""
    plain = tokens(registry, content="ab", model="whatever")
    assert len(plain) == 2
    assert tokens(registry, content="ab", add_special=True) == [BOS, *plain]
    assert tokens(registry, content="</s>ab") == [EOS, *plain]
    assert tokens(registry, content="ab", parse_special=False) == plain
    assert tokens(registry) == tokens(registry, content="") == tokens(registry, content=[]) == []


def test_texts_and_ids_mixed(registry: Registry) -> None:
    """In order, each text encoded by itself."""
    a, b = tokens(registry, content="a"), tokens(registry, content="bc")
    assert tokens(registry, content=["a", 7, 4294967295, "bc", 8]) == [*a, 7, 4294967295, *b, 8]
    assert tokens(registry, content=[5]) == [5]


def test_pieces(registry: Registry) -> None:
    """Text where there are whole characters, else bytes; special tokens as they are written."""
    found = tokens(registry, content="</s>a é", with_pieces=True)
    assert [item["piece"] for item in found] == ["</s>", "a", " ", [0xC3], [0xA9]]
    assert [item["id"] for item in found] == tokens(registry, content="</s>a é")


def test_pieces_of_other_vocabularies(tmp_path: Any) -> None:
    """SentencePiece writes spaces as a bar, and bytes by their number."""
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0xC3>": 4, "<0xA9>": 5}
    tokenizer = Tokenizer(models.BPE(vocab, [("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.ByteFallback()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS.values()])
    folder = write_model(tmp_path / "m", tokenizer=tokenizer.to_str().encode())
    found = tokens(registry_of(f"m={folder}"), content="▁aé", with_pieces=True)
    assert [item["piece"] for item in found] == [" a", [0xC3], [0xA9]]


def test_detokenize(registry: Registry) -> None:
    """Special tokens stay; no tokens are no text."""
    ids = tokens(registry, content="é</s>", add_special=True)
    assert orjson.loads(send(Detokenize(registry), {"tokens": ids}).body) == {"content": "<s>é</s>"}
    assert orjson.loads(send(Detokenize(registry), {}).body) == {"content": ""}


def test_conversations(registry: Registry) -> None:
    """The prompt of one, and how many ids it has."""
    answer = send(ApplyTemplate(registry), {"messages": [USER]})
    assert orjson.loads(answer.body) == {"prompt": "<s>[user]é</s>[assistant]"}
    count = orjson.loads(send(ChatInputTokens(registry), {"messages": [USER]}).body)
    assert count == {"object": "response.input_tokens", "input_tokens": 1 + 6 + 2 + 1 + 11}


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Tokenize, {"content": "a</s>", "parse_special": False}),
        (Tokenize, {"content": ["a", 5], "add_special": True}),
        (Tokenize, {"content": "a", "add_special": 1}),
        (Tokenize, {"content": 5.5}),
        (Tokenize, {"content": [True]}),
        (Tokenize, {"content": [[1]]}),
        (Tokenize, {"content": [-1]}),
        (Tokenize, {"content": "a", "model": 5}),
        (Tokenize, []),
        (Tokenize, b"{"),
        (Detokenize, {"tokens": "a"}),
        (Detokenize, {"tokens": [1 << 32]}),
        (ApplyTemplate, {}),
        (ApplyTemplate, {"messages": []}),
        (ChatInputTokens, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ],
)
def test_errors(endpoint: Any, body: Any, registry: Registry) -> None:
    """llama.cpp's error object."""
    answer = send(endpoint(registry), body)
    error = orjson.loads(answer.body)["error"]
    assert set(error) == {"code", "message", "type"}
    assert (answer.status, error["code"], error["type"]) == (400, 400, "invalid_request_error")


def test_a_name_matters_among_several(tmp_path: Any) -> None:
    """With several models an unknown name is an error."""
    a, b = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    two = registry_of(f"a={a}", f"b={b}")
    assert len(tokens(two, content="x", model="b")) == 1
    answer = send(Tokenize(two), {"content": "x", "model": "?"})
    assert (answer.status, orjson.loads(answer.body)["error"]["type"]) == (404, "not_found_error")
