"""The files of one model, read once: the tokenizer, its chat templates, its special tokens, its context length."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dispatcher.embedded import PACKAGE, embedded_tokenizer_json
from gpu_core.errors import TokenizerFileError

FALLBACK_MODEL_LEN = 2048
"""Context length of a model whose files name none: what vLLM assumes then."""

MAX_FILE_BYTES = 1 << 30
"""Longest file that is read; the largest tokenizers have 30 MB or so."""

MAX_SANE_LEN = 1 << 53
"""Above this a context length is a placeholder (files carry 10^30 for "unknown")."""

LENGTH_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
"""Fields of config.json that hold the context length, in the order of preference."""

GENERATION_FIELDS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "max_new_tokens")
"""Fields of generation_config.json that are the defaults of sampling parameters."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files of one model say."""

    tokenizer_json: bytes
    chat_templates: dict[str, str] = field(default_factory=dict)
    """Source by name; a single template is named `default`."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Text of each special token by its name (`bos_token`, ...), as templates use them."""
    max_model_len: int = FALLBACK_MODEL_LEN
    """Context length in ids: from config.json, else tokenizer_config.json, else `FALLBACK_MODEL_LEN`."""
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    """Those of `GENERATION_FIELDS` that generation_config.json sets to a number."""
    tokenizer_max_len: int | None = None
    """`model_max_length` of tokenizer_config.json, when it is sane."""

    def digest(self, tokenizer_digest: str) -> str:
        """Of all of it, for files of which that of tokenizer.json is known."""
        content = {**asdict(replace(self, tokenizer_json=b"")), "tokenizer_json": tokenizer_digest}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_model_files(path: Path) -> ModelFiles:
    """Read a Hugging Face model directory, or a tokenizer.json and the files beside it.

    Raises `TokenizerFileError` that names the file and the reason.
    """
    folder, tokenizer = (path, path / "tokenizer.json") if path.is_dir() else (path.parent, path)
    if not tokenizer.is_file():
        what = "no such file or directory" if not path.exists() else "the directory has no tokenizer.json"
        raise TokenizerFileError(f"{path}: {what}")
    return _from_folder(_read_bytes(tokenizer), folder)


def read_template(path: Path) -> str:
    """A chat template in a file of its own. Raises `TokenizerFileError`."""
    return _read_text(path)


def read_embedded_files() -> ModelFiles:
    """The embedded model, whose package is located but never imported."""
    data = embedded_tokenizer_json()
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    return _from_folder(data, Path(spec.submodule_search_locations[0]))


def _from_folder(tokenizer_json: bytes, folder: Path) -> ModelFiles:
    tokenizer_config = _read_object(folder / "tokenizer_config.json")
    tokenizer_max_len = _sane_length(tokenizer_config.get("model_max_length"))
    return ModelFiles(
        tokenizer_json,
        _chat_templates(folder, tokenizer_config),
        _special_tokens(folder, tokenizer_config),
        _config_length(_read_object(folder / "config.json")) or tokenizer_max_len or FALLBACK_MODEL_LEN,
        _generation_defaults(_read_object(folder / "generation_config.json")),
        tokenizer_max_len,
    )


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Template files win over templates inside the configuration, as for transformers."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    templates = {name: _read_text(path) for name, path in files.items() if path.is_file()}
    if templates:
        return templates
    inside = config.get("chat_template")
    if inside is None:
        inside = _read_object(folder / "chat_template.json").get("chat_template")
    return _named_templates(inside, folder / "tokenizer_config.json")


def _named_templates(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    named = value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if not isinstance(named, dict) or not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise TokenizerFileError(f"{path}: chat_template is neither text nor a list of named templates")
    return named


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Named tokens: `*_token` of the configuration, then what only special_tokens_map.json or the extra tokens name."""
    extra = config.get("extra_special_tokens")
    sources = [config, extra if isinstance(extra, dict) else {}, _read_object(folder / "special_tokens_map.json")]
    tokens: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and name.endswith("_token"):
                tokens.setdefault(name, text)
    return tokens


def _config_length(config: dict[str, Any]) -> int | None:
    """The context length of a config.json; multimodal ones keep it in `text_config`."""
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, dict) else {}):
        for name in LENGTH_FIELDS:
            if (length := _sane_length(source.get(name))) is not None:
                return length
    return None


def _generation_defaults(config: dict[str, Any]) -> dict[str, Any]:
    values = {name: config.get(name) for name in GENERATION_FIELDS}
    return {name: value for name, value in values.items() if type(value) in (int, float)}


def _sane_length(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < MAX_SANE_LEN:
        return None
    return int(value)


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_bytes(path))
    except json.JSONDecodeError as error:
        raise TokenizerFileError(f"{path}: not JSON, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError):
        raise TokenizerFileError(f"{path}: not JSON") from None
    if not isinstance(value, dict):
        raise TokenizerFileError(f"{path}: not a JSON object")
    return value


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise TokenizerFileError(f"{path}: not UTF-8 at byte {error.start}") from None


def _read_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        # A pipe or a device may have no end.
        if not stat.S_ISREG(status.st_mode):
            raise TokenizerFileError(f"{path}: not a file")
        if status.st_size > MAX_FILE_BYTES:
            raise TokenizerFileError(f"{path}: {status.st_size:,} bytes are too many; {MAX_FILE_BYTES:,} are read")
        return path.read_bytes()
    except OSError as error:
        raise TokenizerFileError(f"{path}: {error.strerror or 'cannot be read'}") from None
