"""llm-d, Dynamo, SGLang and vLLM, each pointed at a running service by the files that are for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer as Reference

from deploy.dynamo.chat import chat
from deploy.exchange import Peer, RefusedError, conversation
from deploy.sglang.generate import generate as generate_sglang
from deploy.vllm.generate import complete
from deploy.vllm.generate import generate as generate_vllm
from service.settings import parse_serve
from tests.deploy.conftest import DEPLOY, HANG_S, image_environ
from tests.deploy.peers import EndpointPicker, IdsInIdsOut, TokenProducer, serving
from tests.end_to_end.harness import ROOT, ServiceProcess
from tests.end_to_end.harness import serving as serving_process
from tests.service.small_model import tokenizer_json, write_model

VALUES = yaml.safe_load((DEPLOY / "llm-d" / "values.yaml").read_text(encoding="utf-8"))["router"]
PICKER = yaml.safe_load(VALUES["epp"]["pluginsCustomConfig"][VALUES["epp"]["pluginsConfigFile"]])
TEXT = "Who are you? \u4f60\u597d"


@pytest.fixture(scope="module")
def tokenizer(home: Path) -> Iterator[ServiceProcess]:
    """A service with a chat model under the names that the files give it."""
    folder = write_model(home / "model", config={"max_position_embeddings": 1 << 21})
    arguments = (f"--model=model={folder}", "--alias=base/model=model")
    with serving_process(home, *arguments, uds=home / "p", cache_dir=home / "cache") as process:
        yield process


@pytest.fixture(scope="module")
def reference() -> Reference:
    """What decides which ids are right."""
    return Reference.from_str(tokenizer_json().decode())


def expected(reference: Reference, text: str) -> list[int]:
    """The ids of a conversation of one message, as the model's template has it."""
    return reference.encode(f"<s>[user]{text}</s>[assistant]", add_special_tokens=False).ids


def plugin(kind: str) -> dict[str, Any]:
    """The parameters of a plugin of llm-d's picker."""
    (found,) = (one for one in PICKER["plugins"] if one["type"] == kind)
    return dict(found["parameters"])


def test_llm_d_gets_its_ids(tokenizer: ServiceProcess, reference: Reference) -> None:
    """The plugin as configured warms up and gets exact ids, whatever model name clients send."""
    producer = TokenProducer(plugin("token-producer"), tokenizer.port)
    assert producer.warm_up() == 400
    message = {"role": "user", "content": TEXT}
    body = {"model": "what clients say", "messages": [message], "stream": True, "temperature": 0.2}
    assert producer.chat(body) == expected(reference, TEXT)
    assert producer.chat({**body, "tools": []}) == expected(reference, TEXT)
    assert producer.complete({"model": "x", "prompt": TEXT, "max_tokens": 5}) == reference.encode(TEXT).ids
    producer.close()


def test_llm_d_runs_the_sidecar() -> None:
    """The chart is given a command that serves what the plugin asks for, on the port that it asks at."""
    sidecar = VALUES["tokenizer"]
    assert sidecar["command"] == ["sidetok"]
    command, *arguments = sidecar["args"]
    environ = {**image_environ(), **{variable["name"]: variable["value"] for variable in sidecar["env"]}}
    options, work, gpu = parse_serve(arguments, environ)
    assert command == "serve"
    assert (options.port, options.uds, gpu.gpus) == (sidecar["port"], "", "none")
    assert plugin("token-producer")["vllm"]["url"] == f"http://localhost:{options.port}"
    names = {model.split("=", 1)[0] for model in options.model}
    assert names == {plugin("token-producer")["modelName"]} == {sidecar["modelName"]}
    assert work.cache_dir
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "render-http"}


def test_llm_d_knows_its_plugins() -> None:
    """Every plugin that a profile refers to is there, and the scorer's producer, too."""
    kinds = {one["type"] for one in PICKER["plugins"]}
    for profile in PICKER["schedulingProfiles"]:
        assert {one["pluginRef"] for one in profile["plugins"]} <= kinds
    assert plugin("prefix-cache-scorer")["prefixMatchInfoProducerName"] in kinds


def epp_environ(**more: str) -> dict[str, str]:
    """The environment file of Dynamo's picker."""
    lines = (DEPLOY / "dynamo" / "epp.env").read_text(encoding="utf-8").splitlines()
    return {**dict(line.split("=", 1) for line in lines if line and not line.startswith("#")), **more}


@pytest.mark.parametrize("protocol", ["vllm-render", "sglang-renderer"])
def test_dynamo_gets_its_ids(tokenizer: ServiceProcess, reference: Reference, protocol: str) -> None:
    """The picker as configured gets exact ids, by both protocols, also of a text of 300 kB."""
    picker = EndpointPicker(epp_environ(DYN_EPP_TOKENIZER_PROTOCOL=protocol), tokenizer.port)
    for text in (TEXT, "long " * 60_000):
        body = {**conversation(picker.model, text, 10), "stream": True, "nvext": {"annotations": []}}
        assert picker.pick(json.dumps(body, indent=2).encode()) == expected(reference, text)


@pytest.mark.parametrize("uds", [False, True])
def test_sglang_never_sees_text(tokenizer: ServiceProcess, reference: Reference, uds: bool) -> None:
    """Ids go in, ids come out, and the caller gets the text of them."""
    engine = IdsInIdsOut(reference.encode("I am.", add_special_tokens=False).ids)
    with serving(engine.sglang) as address:
        peers = Peer(f"unix:{tokenizer.uds}" if uds else f"http://127.0.0.1:{tokenizer.port}"), Peer(address)
        body = {**conversation("model", TEXT, 7), "temperature": 0.5, "stop": ["\n"]}
        assert generate_sglang(*peers, body) == "I am."
        for peer in peers:
            peer.close()
    (seen,) = engine.seen
    assert seen["input_ids"] == expected(reference, TEXT)
    assert (seen["sampling_params"]["max_new_tokens"], seen["sampling_params"]["temperature"]) == (7, 0.5)


def test_vllm_never_sees_text(tokenizer: ServiceProcess, reference: Reference) -> None:
    """What is rendered is a request that the engine takes as it is; ids come out, and the caller gets their text."""
    engine = IdsInIdsOut(reference.encode("I am.", add_special_tokens=False).ids)
    with serving(engine.vllm) as address:
        peers = Peer(f"unix:{tokenizer.uds}"), Peer(address)
        assert generate_vllm(*peers, conversation("model", TEXT, 7)) == "I am."
        for peer in peers:
            peer.close()
    (seen,) = engine.seen
    assert seen["token_ids"] == expected(reference, TEXT)
    assert seen["sampling_params"]["max_tokens"] == 7


def test_completions_take_ids(tokenizer: ServiceProcess, reference: Reference) -> None:
    """An engine without the endpoint for ids takes them as a prompt."""
    engine = IdsInIdsOut([])
    with serving(engine.completions) as address:
        peers = Peer(f"unix:{tokenizer.uds}"), Peer(address)
        assert complete(*peers, conversation("model", TEXT, 7)) == "answered"
        for peer in peers:
            peer.close()
    assert engine.seen[0]["prompt"] == expected(reference, TEXT)


def test_a_frontend_of_dynamo_gets_ids_and_text(tokenizer: ServiceProcess, reference: Reference) -> None:
    """The client's body goes on whole, with its own extensions and the ids beside them."""
    engine = IdsInIdsOut([])
    with serving(engine.dynamo) as address:
        peers = Peer(f"unix:{tokenizer.uds}"), Peer(address)
        body = {**conversation("model", TEXT, 7), "nvext": {"ignore_eos": True}}
        assert chat(*peers, body) == "answered"
        for peer in peers:
            peer.close()
    assert engine.seen == [{**body, "nvext": {"ignore_eos": True, "token_data": expected(reference, TEXT)}}]


def test_a_refusal_is_told(tokenizer: ServiceProcess) -> None:
    """An unknown model ends the exchange before the engine is asked, with what the service says."""
    engine = IdsInIdsOut([])
    with serving(engine.vllm) as address:
        peers = Peer(f"unix:{tokenizer.uds}"), Peer(address)
        with pytest.raises(RefusedError, match="404"):
            generate_vllm(*peers, conversation("other", TEXT, 7))
        for peer in peers:
            peer.close()
    assert engine.seen == []


@pytest.mark.parametrize("program", ["dynamo.chat", "sglang.generate", "vllm.generate"])
def test_the_command_lines(tokenizer: ServiceProcess, reference: Reference, program: str) -> None:
    """Each exchange runs as its page says, and prints the answer."""
    engine = IdsInIdsOut(reference.encode("answered", add_special_tokens=False).ids)
    with serving(getattr(engine, program.split(".")[0])) as address:
        flags = ("--tokenizer", f"unix:{tokenizer.uds}", "--engine", address, TEXT)
        command = [sys.executable, "-m", f"deploy.{program}", *flags]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (result.stdout, result.returncode) == ("answered\n", 0), result.stderr


@pytest.mark.parametrize("engine", ["sglang", "vllm", "dynamo"])
def test_pages_and_manifests_agree(engine: str) -> None:
    """The flags that a page tells are those of the engine's manifest."""
    page = (DEPLOY / engine / "README.md").read_text(encoding="utf-8")
    manifest = (DEPLOY / "kubernetes" / "engines" / engine / "engine.yaml").read_text(encoding="utf-8")
    flag = {"sglang": "--skip-tokenizer-init", "vllm": "--tokens-only", "dynamo": "nvext.token_data"}[engine]
    assert flag in page
    assert flag in manifest
