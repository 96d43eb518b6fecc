"""A tokenizer of a few hundred entries, model directories around it, and a way to send a body through an endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeRequest, Result
from gpu_core.errors import SidetokError
from service.endpoint import Answer, Endpoint, Head
from service.options import ServiceOptions
from service.registry import Registry

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "[{{ message.role }}]{{ message.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tokenizer_json() -> bytes:
    """A byte-level BPE without merges: one id per byte, `<s>` in front when special tokens are added."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS.values()])
    bos = SPECIAL_TOKENS["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer.to_str().encode()


def write_model(folder: Path, *, tokenizer: bytes | None = None, **files: Any) -> Path:
    """A model directory. `files` are JSON values by the stem of their file; None leaves a file out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(tokenizer_json() if tokenizer is None else tokenizer)
    config = {**SPECIAL_TOKENS, "chat_template": CHAT_TEMPLATE, "model_max_length": 512}
    for stem, value in {"tokenizer_config": config, "config": {"max_position_embeddings": 1024}, **files}.items():
        if value is not None:
            (folder / f"{stem}.json").write_text(json.dumps(value))
    return folder


def registry_of(*models: str, **options: Any) -> Registry:
    """A registry with its models loaded, by the reference engine: its load is short."""
    registry = Registry(ServiceOptions(model=models, **options), DispatcherOptions(cpu_engine="reference"))
    registry.load_all()
    return registry


def head_of(path: str = "/tokenize", content_type: bytes = b"application/json", dialect: bytes = b"") -> Head:
    """The head of a POST request."""
    return Head(path, b"", [], "test", content_type, dialect=dialect)


def documents_of(endpoint: Endpoint, body: Any) -> list[str]:
    """The texts that an endpoint would have encoded for a body, a value to be sent as JSON."""
    request = endpoint.read(head_of(), json.dumps(body).encode())
    assert isinstance(request, EncodeRequest)
    return [*request.documents]


def send(endpoint: Endpoint, body: Any, head: Head | None = None) -> Answer:
    """The answer to a body (bytes, or a value to be sent as JSON): read, then encode or decode, then write or fail."""
    head = head or head_of()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        request = endpoint.read(head, data)
        result: Result
        if isinstance(request, EncodeRequest):
            result = request.tokenizer.encode(request.documents, request.options)
        else:
            result = request.tokenizer.decode(request.sequences, request.skip_special_tokens)
        return endpoint.write(head, request, result)
    except SidetokError as error:
        return endpoint.fail(head, error)
