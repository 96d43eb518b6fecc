"""The command `sidetok inspect`: load one tokenizer as the service would, and say what was found."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from dispatcher.embedded import EMBEDDED_MODEL
from dispatcher.engines import is_fault
from dispatcher.options import DispatcherOptions
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError
from service.chat import ChatTemplate
from service.errors import ChatTemplateError
from service.model_files import ModelFiles, read_embedded_files, read_model_files
from service.settings import Parser, add_flags, resolve, settings_of, with_cache_dir

SETTINGS = [setting for setting in settings_of(DispatcherOptions) if setting.field in ("cpu_engine", "cache_dir")]


def inspect(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Print what loading `PATH` finds; exit status 1, and one line that says why, when it cannot be served."""
    namespace, options = _parse(argv, environ)
    try:
        facts = examine(namespace.path, options)
    except BaseException as error:
        # A native library may panic on a file; the panic derives from BaseException.
        if not is_fault(error):
            raise
        print(f"sidetok inspect: {_reason(namespace.path, error)}", file=sys.stderr)
        return 1
    print(orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode() if namespace.json else table(facts))
    return 0


def examine(path: str | None, options: DispatcherOptions) -> dict[str, Any]:
    """The facts of one model: name -> number, text, list, or named facts. `path` None is the embedded model.

    Raises `TokenizerFileError` for files that cannot be served.
    """
    files = read_model_files(Path(path)) if path else read_embedded_files()
    start_s = time.perf_counter()
    cache_dir = Path(options.cache_dir) if options.cache_dir else None
    tokenizer = load_tokenizer(files.tokenizer_json, engine=options.cpu_engine, cache_dir=cache_dir)
    load_s = time.perf_counter() - start_s
    spec = tokenizer.spec
    return {
        "path": path or f"{EMBEDDED_MODEL} (embedded)",
        "digest": spec.digest,
        "normalizer": list(spec.normalizers),
        "pre_tokenizer": list(spec.pre_tokenizers),
        "pattern_family": spec.pattern_family,
        "model": _model(tokenizer),
        "added_tokens": {
            "count": len(spec.added_tokens),
            "special": sum(token.special for token in spec.added_tokens),
            "normalized": sum(token.normalized for token in spec.added_tokens),
        },
        "vocab_size": tokenizer.vocab_size,
        "max_id": spec.max_id,
        "post_processor": list(spec.post_processors),
        "decoder": list(spec.decoders),
        "chat_template": _chat_template(files),
        "special_tokens": files.special_tokens,
        "max_model_len": files.max_model_len,
        "engine": {"name": tokenizer.engine, "reason": tokenizer.engine_reason},
        "load_s": round(load_s, 3),
    }


def table(facts: Mapping[str, Any]) -> str:
    """The facts as two aligned columns."""
    rows = [
        (name.removesuffix("_s").replace("_", " "), PHRASES.get(name, _phrase)(value)) for name, value in facts.items()
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {phrase}" for name, phrase in rows)


def _parse(argv: Sequence[str], environ: Mapping[str, str] | None) -> tuple[argparse.Namespace, DispatcherOptions]:
    parser = Parser(prog="sidetok inspect", description="Load a tokenizer as the service would; say what was found.")
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="a model directory or tokenizer.json; none = the embedded model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_flags(parser, SETTINGS)
    namespace = parser.parse_args(argv)
    options = DispatcherOptions(**resolve(parser, namespace, SETTINGS, environ))
    return namespace, with_cache_dir(options, environ)


def _reason(path: str | None, error: BaseException) -> str:
    """One line that starts with the path."""
    said = " ".join(str(error).split()) if isinstance(error, SidetokError) else f"{type(error).__name__}: {error}"
    where = path or EMBEDDED_MODEL
    return said if said.startswith(where) else f"{where}: {said}"


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    spec = tokenizer.spec
    model: dict[str, Any] = {"type": spec.model_type, "entries": spec.vocab_size}
    if spec.model_type == "BPE":
        model["merges"] = spec.n_merges
    switches = ("byte_level", "ignore_merges", "byte_fallback", "fuse_unk")
    model |= {name: True for name in switches if getattr(spec, name)}
    return model


def _chat_template(files: ModelFiles) -> dict[str, Any] | None:
    if not files.chat_templates:
        return None
    try:
        ChatTemplate(files.chat_templates, files.special_tokens)
    except ChatTemplateError as error:
        return {"names": list(files.chat_templates), "error": str(error)}
    return {"names": list(files.chat_templates)}


def _phrase(value: Any) -> str:
    """A fact as a reader would say it."""
    if isinstance(value, list):
        return " + ".join(value) or "none"
    return "none" if value is None else str(value)


def _model_phrase(model: dict[str, Any]) -> str:
    merges = [f"{model['merges']} merges"] if "merges" in model else []
    return ", ".join(
        [model["type"], f"{model['entries']} entries", *merges, *(k for k, v in model.items() if v is True)]
    )


def _template_phrase(template: dict[str, Any] | None) -> str:
    if template is None:
        return "none"
    names = ", ".join(template["names"])
    return f"{names}; not usable: {template['error']}" if "error" in template else names


PHRASES: dict[str, Callable[[Any], str]] = {
    "model": _model_phrase,
    "added_tokens": lambda tokens: "{count} ({special} special, {normalized} normalized)".format(**tokens),
    "chat_template": _template_phrase,
    "special_tokens": lambda tokens: ", ".join(f"{name} {text!r}" for name, text in tokens.items()) or "none",
    "engine": lambda engine: "{name}: {reason}".format(**engine),
    "load_s": lambda seconds: f"{seconds:.2f} s, with the proof if it ran now",
}
"""How the table says facts that are more than a value or a list."""
