"""Models are found, named and described; a bad one harms no other, and its reason can be read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeOptions
from gpu_core.errors import TokenizerFileError
from service.errors import ModelFailed, ModelNotReady, UnknownModel
from service.model_files import FALLBACK_MODEL_LEN, MAX_FILE_BYTES, read_embedded_files, read_model_files, read_template
from service.options import ServiceOptions
from service.registry import Registry
from tests.service.small_model import registry_of, tokenizer_json, write_model


def make(**options: Any) -> Registry:
    """A registry with nothing loaded."""
    return Registry(ServiceOptions(**options), DispatcherOptions())


def test_a_directory_is_served_under_its_name(tmp_path: Path) -> None:
    """`--model NAME=PATH` loads the tokenizer, the template and the context length of a model directory."""
    registry = registry_of(f"small={write_model(tmp_path / 'm')}")
    model = registry.resolve("small")
    assert model.state == "ready"
    assert model.error is None
    assert model.max_model_len == 1024
    assert model.tokenizer_max_len == 512
    assert model.chat_template is not None
    (encoded,) = model.ready_tokenizer.encode(["hi"], EncodeOptions(add_special_tokens=True))
    assert encoded.n_tokens == 3
    assert model.ready_tokenizer.decode([np.frombuffer(encoded.ids, "<u4")], True) == ["hi"]


def test_a_path_alone_is_named_after_its_folder(tmp_path: Path) -> None:
    """The name may be left out; a file is named after the folder it lies in, and its siblings are used."""
    folder = write_model(tmp_path / "nice")
    assert make(model=(str(folder),)).names() == ["nice"]
    registry = registry_of(str(folder / "tokenizer.json"))
    assert registry.names() == ["nice"]
    assert registry.resolve("nice").chat_template is not None


def test_a_name_may_have_a_slash(tmp_path: Path) -> None:
    """`Qwen/Qwen3-8B=PATH` is a name; what begins as a path, or exists with its '=', is a path."""
    folder = write_model(tmp_path / "m")
    assert registry_of(f"Qwen/Qwen3-8B={folder}").resolve("Qwen/Qwen3-8B").state == "ready"
    odd = write_model(tmp_path / "a=b")
    assert registry_of(str(odd)).names() == ["a=b"]
    assert make(model=("./x/y=z",)).names() == ["y=z"]


def test_no_model_is_the_embedded_one() -> None:
    """Without arguments the embedded model is served, with the length of its own configuration and no chat template."""
    registry = registry_of()
    model = registry.resolve(None)
    assert (model.name, model.path, model.max_model_len) == ("deepseek-v4", "embedded", 1048576)
    assert model.chat_template is None
    assert read_embedded_files().special_tokens["bos_token"] == "<｜begin▁of▁sentence｜>"


def test_names_and_aliases(tmp_path: Path) -> None:
    """A model is found by its name and its aliases; requests that name none get the default."""
    a, b = write_model(tmp_path / "a"), write_model(tmp_path / "b")
    registry = registry_of(f"a={a}", f"b={b}", alias=("gpt=b", "x/y=a"), default_model="gpt")
    assert registry.names() == ["a", "b", "gpt", "x/y"]
    assert registry.resolve("gpt").name == registry.resolve(None).name == registry.resolve("").name == "b"
    assert registry.resolve("x/y").name == "a"
    assert [model.aliases for model in registry.models()] == [("x/y",), ("gpt",)]


@pytest.mark.parametrize("name", ["nosuch", "x" * 5000, "lone \ud800"])
def test_an_unknown_name(tmp_path: Path, name: str) -> None:
    """The error lists the names that exist, repeats a long name only in part, and can always be sent."""
    registry = registry_of(f"a={write_model(tmp_path / 'a')}", alias=("b=a",))
    with pytest.raises(UnknownModel) as caught:
        registry.resolve(name)
    message = str(caught.value)
    assert message.endswith("does not exist. Valid aliases: a, b.")
    assert len(message.encode()) < 400
    if name == "nosuch":
        assert message == "The model `nosuch` does not exist. Valid aliases: a, b."


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": ("=x",)}, "--model =x: expected NAME=PATH"),
        ({"model": ("a=",)}, "--model a=: expected NAME=PATH"),
        ({"model": ("a=x", "a=y")}, "two models named 'a'"),
        ({"model": ("a=x",), "alias": ("b",)}, "--alias b: expected NAME=MODEL"),
        ({"model": ("a=x",), "alias": ("b=",)}, "--alias b=: expected NAME=MODEL"),
        ({"model": ("a=x",), "alias": ("b=c",)}, "no model named 'c'"),
        ({"model": ("a=x",), "alias": ("b=a", "c=b")}, "no model named 'b'"),
        ({"model": ("a=x",), "alias": ("a=a",)}, "the name 'a' is taken"),
        ({"model": ("a=x",), "alias": ("b=a", "b=a")}, "the name 'b' is taken"),
        ({"model": ("a=x",), "default_model": "c"}, "--default-model c: there is no such model"),
    ],
)
def test_bad_arguments(options: dict[str, Any], reason: str) -> None:
    """Arguments that contradict each other are refused at once, with the flag and the reason."""
    with pytest.raises(ValueError, match=reason):
        make(**options)


def test_nothing_is_ready_before_the_load(tmp_path: Path) -> None:
    """A model that loads is known and listed, but refuses requests as one that may be tried again."""
    registry = make(model=(f"a={write_model(tmp_path / 'a')}",))
    assert not registry.ready
    assert registry.describe()[0]["state"] == "loading"
    with pytest.raises(ModelNotReady, match="still loading"):
        registry.resolve("a")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"{", ""),
        (b"[]", ""),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}', ""),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_a_bad_model_harms_no_other(tmp_path: Path, data: bytes, reason: str) -> None:
    """One broken file is listed as failed with its reason; the other model serves, and the registry is ready."""
    bad, good = write_model(tmp_path / "bad", tokenizer=data), write_model(tmp_path / "good")
    registry = registry_of(f"bad={bad}", f"good={good}")
    assert registry.ready
    item = {item["id"]: item for item in registry.describe()}["bad"]
    assert item["state"] == "failed"
    assert item["error"]
    assert reason in item["error"]
    assert registry.resolve("good").state == "ready"
    with pytest.raises(ModelFailed, match="failed to load"):
        registry.resolve(None)
    with pytest.raises(ModelFailed, match="failed to load"):
        _ = registry.models()[0].ready_tokenizer


def test_only_bad_models_are_never_ready(tmp_path: Path) -> None:
    """A service that can serve nothing does not want traffic."""
    assert not registry_of(f"a={tmp_path / 'nowhere'}").ready


def test_the_listing(tmp_path: Path) -> None:
    """Each item is an OpenAI model with its state, the engine that serves it and why, and facts of the tokenizer."""
    folder = write_model(tmp_path / "a")
    (item,) = registry_of(f"a={folder}", alias=("b=a",)).describe()
    assert json.loads(json.dumps(item)) == item
    assert isinstance(item.pop("created"), int)
    engine = item.pop("engine")
    assert engine["name"] == "reference"
    assert engine["reason"]
    assert item.pop("routes") == {
        "cpu": {"serves": True, "reason": engine["reason"]},
        "gpu": {"serves": False, "reason": "there is no GPU route"},
    }
    facts = item.pop("tokenizer")
    assert item == {
        "id": "a",
        "object": "model",
        "owned_by": "sidetok",
        "root": str(folder),
        "max_model_len": 1024,
        "aliases": ["b"],
        "default": True,
        "state": "ready",
        "error": None,
    }
    assert len(facts.pop("digest")) == 64
    assert facts.pop("family")
    assert facts == {"normalizer": "none", "vocab_size": 258, "added_tokens": 2, "chat_template": True}


def test_a_template_that_does_not_compile_leaves_text_served(tmp_path: Path) -> None:
    """The model is ready without chat, and says why."""
    folder = write_model(tmp_path / "a", tokenizer_config={"chat_template": "{% if %}"})
    model = registry_of(f"a={folder}").resolve("a")
    assert model.chat_template is None
    assert model.error is not None
    assert "chat template 'default', line 1" in model.error


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({"max_position_embeddings": 4096}, {"model_max_length": 8}, 4096),
        ({"text_config": {"max_position_embeddings": 2048 * 3}}, {}, 6144),
        ({"max_position_embeddings": None, "n_positions": 77}, {}, 77),
        ({}, {"model_max_length": 131072}, 131072),
        (None, {"model_max_length": 131072.0}, 131072),
        ({"max_position_embeddings": -1}, {"model_max_length": 10**30}, FALLBACK_MODEL_LEN),
        ({"max_position_embeddings": True}, {"model_max_length": "long"}, FALLBACK_MODEL_LEN),
        (None, None, FALLBACK_MODEL_LEN),
    ],
)
def test_the_context_length(tmp_path: Path, config: Any, tokenizer_config: Any, expected: int) -> None:
    """config.json wins, at the top or in `text_config`; then a sane tokenizer configuration; then a fallback."""
    write_model(tmp_path, config=config, tokenizer_config=tokenizer_config)
    assert read_model_files(tmp_path).max_model_len == expected


def test_where_templates_come_from(tmp_path: Path) -> None:
    """Template files win over the configuration, which holds one template or a list of named ones."""
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    write_model(tmp_path, tokenizer_config={"chat_template": named})
    assert read_model_files(tmp_path).chat_templates == {"default": "D", "tool_use": "T"}
    (tmp_path / "chat_template.jinja").write_text("é", encoding="utf-8")
    assert read_model_files(tmp_path).chat_templates == {"default": "é"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert read_model_files(tmp_path).chat_templates == {"default": "é", "rag": "R"}


def test_a_template_beside_the_processor(tmp_path: Path) -> None:
    """Older multimodal models keep their template in chat_template.json."""
    write_model(tmp_path, tokenizer_config={}, chat_template={"chat_template": "P"})
    assert read_model_files(tmp_path).chat_templates == {"default": "P"}


def test_special_tokens_have_several_sources(tmp_path: Path) -> None:
    """Plain and structured tokens, extra tokens, and a map that only fills gaps."""
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<b>"},
        "eos_token": None,
        "add_bos_token": True,
        "extra_special_tokens": {"image_token": "<i>"},
    }
    write_model(tmp_path, tokenizer_config=config, special_tokens_map={"bos_token": "no", "eos_token": "<e>"})
    assert read_model_files(tmp_path).special_tokens == {"bos_token": "<b>", "eos_token": "<e>", "image_token": "<i>"}


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("config.json", b"{", "config.json: not JSON, line 1"),
        ("config.json", b"[]", "config.json: not a JSON object"),
        ("tokenizer_config.json", b"\xff", "tokenizer_config.json: not JSON"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template is neither text nor a list"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: not UTF-8 at byte 0"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    """The error says which file is broken, and where."""
    write_model(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TokenizerFileError, match=reason):
        read_model_files(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    """A path that is not there and a folder without a tokenizer are told apart."""
    with pytest.raises(TokenizerFileError, match="no such file or directory"):
        read_model_files(tmp_path / "nowhere")
    with pytest.raises(TokenizerFileError, match=r"has no tokenizer\.json"):
        read_model_files(tmp_path)


def test_the_digest_is_of_all_that_files_say(tmp_path: Path) -> None:
    """Whatever is changed in one of them changes it; reading them again does not."""
    write_model(tmp_path)
    digests = {read_model_files(tmp_path).digest("t"), read_model_files(tmp_path).digest("u")}
    (tmp_path / "chat_template.jinja").write_text("a")
    digests.add(read_model_files(tmp_path).digest("t"))
    (tmp_path / "config.json").write_text('{"n_positions": 7}')
    digests |= {read_model_files(tmp_path).digest("t"), read_model_files(tmp_path).digest("t")}
    assert len(digests) == 4


def test_a_bare_file_is_enough(tmp_path: Path) -> None:
    """A tokenizer.json alone is served: no template, no special tokens, the fallback length."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    files = read_model_files(path)
    assert (files.chat_templates, files.special_tokens) == ({}, {})
    assert files.max_model_len == FALLBACK_MODEL_LEN


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    """A pipe, and a file that is much too long, are errors that say so; nobody waits for a writer."""
    pipe, large = tmp_path / "pipe", tmp_path / "tokenizer.json"
    os.mkfifo(pipe)
    with pytest.raises(TokenizerFileError, match="pipe: not a file"):
        read_template(pipe)
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(TokenizerFileError, match=r"too many; 1,073,741,824 are read"):
        read_model_files(large)
