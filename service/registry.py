"""The models that are served: their names, their state, their tokenizers and chat templates."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from dispatcher.embedded import EMBEDDED_MODEL
from dispatcher.engines import is_fault
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.model_process import ModelProcess
from dispatcher.options import DispatcherOptions
from dispatcher.policy import CPU, GPU
from dispatcher.remote_tokenizer import RemoteTokenizer
from dispatcher.request import Route
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.errors import SidetokError
from service.chat import ChatTemplate
from service.errors import ChatTemplateError, Conflict, ModelFailed, ModelNotReady, UnknownModel
from service.model_files import ModelFiles, read_embedded_files, read_model_files, read_template
from service.options import ServiceOptions

log = logging.getLogger("sidetok.registry")

EMBEDDED = "embedded"
"""The path of the embedded model."""

MAX_SHOWN_NAME = 256
"""Characters of an unknown model name that are repeated in the error."""

MAX_LOADERS = 4
"""Models that are loaded at the same time."""

MAX_MODELS = 64
"""Models up to which more may be added at run time."""

REMOVED = "It was removed while it loaded."

State = Literal["loading", "ready", "failed"]


@dataclass(slots=True)
class Model:
    """One model. It is filled by the thread that loads it; `state` is set last."""

    name: str
    path: str
    """Directory or file, or `embedded`."""
    template_path: str = ""
    """A file with the chat template that stands for those of the model; empty = the model's own."""
    is_added: bool = False
    """It came at run time: readiness does not wait for it."""
    is_removed: bool = False
    process: ModelProcess | None = None
    """That of an added model, from the begin of its load."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    aliases: tuple[str, ...] = ()
    state: State = "loading"
    error: str | None = None
    """Why the load failed; for a ready model, why it has no chat template although its files do."""
    load_s: float = 0.0
    """Seconds that the load took."""
    created_s: int = field(default_factory=lambda: int(time.time()))
    """Unix time of registration."""
    tokenizer: Tokenizer | None = None
    files_digest: str = ""
    """Of what its files said; empty until it is loaded."""
    chat_template: ChatTemplate | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Text of each special token by its name, as templates use them."""
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters that the model's own generation_config.json sets."""
    max_model_len: int = 0
    """Context length in ids."""
    tokenizer_max_len: int | None = None
    """Context length that the tokenizer's own configuration names, if it names a sane one."""

    @property
    def ready_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises `ModelNotReady` while it loads, `ModelFailed` when it could not be loaded."""
        if self.state == "failed":
            raise ModelFailed(f"The model `{self.name}` failed to load; GET /v1/models says why.")
        if self.tokenizer is None or self.state != "ready":
            raise ModelNotReady(f"The model `{self.name}` is still loading; try again.")
        return self.tokenizer


class Registry:
    """All models of the process. Tables of names are replaced and never changed: any thread may read them."""

    def __init__(self, service: ServiceOptions, dispatcher: DispatcherOptions) -> None:
        """Register models, loading nothing. Raises `ValueError` that names the flag with the wrong value."""
        self._engine = dispatcher.cpu_engine
        self._max_reference_bytes = dispatcher.max_reference_bytes
        self._cache_dir = Path(dispatcher.cache_dir) if dispatcher.cache_dir else None
        self._policy = dispatcher.policy
        self.gpus: Gpus | None = None
        """Where loaded tokenizers are served, too."""
        self.clocks = ThreadClocks()
        """Where the CPU time of processes of models is counted."""
        self._removal = threading.Lock()
        """Between the thread that removes a model and the one that loads it, neither of which waits for the other."""
        self._models = _parse_models(service.model)
        self._names = _parse_aliases(service.alias, self._models)
        default = service.default_model or next(iter(self._models))
        if default not in self._names:
            raise ValueError(f"--default-model {default}: there is no such model; there are {', '.join(self._names)}")
        self.default = self._names[default]
        self.n_models = len(self._models)
        for model in self._models.values():
            model.aliases = tuple(name for name, other in self._names.items() if other is model and name != model.name)

    def resolve(self, name: str | None) -> Model:
        """The model of that name or alias, ready to serve; None or "" is the default.

        Raises `UnknownModel`, `ModelNotReady` or `ModelFailed`.
        """
        model = self._names.get(name) if name else self.default
        if model is None:
            # A name may hold lone surrogates, which no answer can carry.
            shown = str(name)[:MAX_SHOWN_NAME].encode(errors="replace").decode()
            raise UnknownModel(f"The model `{shown}` does not exist. Valid aliases: {', '.join(self._names)}.")
        _ = model.ready_tokenizer
        return model

    def canonical(self, name: str) -> str:
        """The model's own name for a name or alias; that of the default model for what is unknown."""
        return self._names.get(name, self.default).name

    def names(self) -> list[str]:
        """Every name that `resolve` knows: models first, then aliases."""
        return list(self._names)

    def models(self) -> list[Model]:
        """The models in the order of the command line."""
        return list(self._models.values())

    def may_use_gpu(self, route: Route) -> bool:
        """Whether a GPU may answer a request that asks for this route."""
        gpus = self.gpus
        return gpus is not None and gpus.any and route != CPU and (route == GPU or self._policy != CPU)

    @property
    def ready(self) -> bool:
        """Whether every model ended its load, and one at least is ready."""
        states = [model.state for model in self._models.values() if not model.is_added]
        return "loading" not in states and "ready" in states

    def add(self, name: str, path: str, template_path: str = "") -> Model:
        """A further model, to be loaded with `load`. Only one thread adds and removes. Raises `Conflict`."""
        if name in self._names:
            raise Conflict(f"The name {name!r} is taken.")
        if len(self._models) >= MAX_MODELS:
            raise Conflict(f"There are {MAX_MODELS} models already; remove one first.")
        model = Model(name, path, template_path=template_path, is_added=True)
        self._models = {**self._models, name: model}
        self._names = {**self._names, name: model}
        self.n_models = len(self._models)
        return model

    def remove(self, model: Model) -> None:
        """Serve a model no more; what is under way is finished, a load of an added model is given up.

        Raises `Conflict` for one that cannot go now.
        """
        if model is self.default:
            raise Conflict(f"The model {model.name!r} is the default; it stays.")
        if model.state == "loading" and not model.is_added:
            raise Conflict(f"The model {model.name!r} is still loading; try again.")
        self._models = {name: other for name, other in self._models.items() if other is not model}
        self._names = {name: other for name, other in self._names.items() if other is not model}
        self.n_models = len(self._models)
        with self._removal:
            model.is_removed = True
            if model.tokenizer is None:
                if model.process is not None:
                    model.process.close()
            elif self.gpus is not None:
                self.gpus.remove(model.tokenizer)
            # Requests that are under way keep the tokenizer, and it keeps the process.
            model.process = None

    def close(self) -> None:
        """End the processes of models."""
        processes = [model.process for model in self._models.values() if model.process is not None]
        for process in processes:
            process.close()
        for process in processes:
            process.join()

    def load(self, model: Model) -> None:
        """Load one model; returns when it is ready or failed, at once when it was removed."""
        if not model.is_removed:
            self._load(model)

    def load_all(self, around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> None:
        """Load every model; returns when each is ready or failed. A model that fails harms no other.

        Each thread that loads does so inside the context that `around` gives it.
        """
        waiting: SimpleQueue[Model] = SimpleQueue()
        for model in self._models.values():
            waiting.put(model)

        def work() -> None:
            with around(), contextlib.suppress(Empty):
                while True:
                    self._load(waiting.get_nowait())

        # Daemons: a load that takes long does not hold up the exit.
        threads = [
            threading.Thread(target=work, name=f"sidetok-load-{i}", daemon=True)
            for i in range(min(MAX_LOADERS, len(self._models)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def describe(self) -> list[dict[str, Any]]:
        """The models as items of an OpenAI model list, each with its state, engine and tokenizer."""
        return [self._describe(model) for model in self._models.values()]

    def _load(self, model: Model) -> None:
        start_s = time.perf_counter()
        try:
            self._fill(model, _files_of(model))
            model.state = "ready"
        except BaseException as error:
            # A native library may panic on a file; the panic derives from BaseException.
            if not is_fault(error):
                raise
            model.error = str(error) if isinstance(error, SidetokError) else f"{type(error).__name__}: {error}"
            model.process, model.state = None, "failed"
        model.load_s = time.perf_counter() - start_s
        _log_load(model)

    def _fill(self, model: Model, files: ModelFiles) -> None:
        model.max_model_len = files.max_model_len
        model.special_tokens = files.special_tokens
        model.generation_defaults = files.generation_defaults
        model.tokenizer_max_len = files.tokenizer_max_len
        tokenizer = self._tokenizer_of(files.tokenizer_json, model)
        if self.gpus is not None:
            self.gpus.add(tokenizer, files.tokenizer_json)
        model.files_digest = files.digest(tokenizer.spec.digest)
        with self._removal:
            if not model.is_removed:
                model.tokenizer = tokenizer
        if model.tokenizer is None:
            if self.gpus is not None:
                self.gpus.remove(tokenizer)
            raise ModelFailed(REMOVED)
        if files.chat_templates:
            try:
                model.chat_template = ChatTemplate(files.chat_templates, files.special_tokens)
            except ChatTemplateError as error:
                # Text can be served without it.
                model.error = str(error)

    def _tokenizer_of(self, data: bytes, model: Model) -> Tokenizer:
        """In a process of its own for a model that comes at run time: its load would hold up everybody else."""
        options: dict[str, Any] = {
            "engine": self._engine,
            "cache_dir": self._cache_dir,
            "max_reference_bytes": self._max_reference_bytes,
        }
        if not model.is_added:
            return load_tokenizer(data, **options)
        process = ModelProcess(data, options, self.clocks)
        with self._removal:
            if model.is_removed:
                raise ModelFailed(REMOVED)
            model.process = process
        return RemoteTokenizer(process)

    def _on_gpu(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Whether the GPU route serves a tokenizer now, and if not, why."""
        why_not = "there is no GPU route" if self.gpus is None else self.gpus.why_not(tokenizer.spec.digest)
        return {"serves": not why_not, "reason": why_not or "an engine has it"}

    def _describe(self, model: Model) -> dict[str, Any]:
        item: dict[str, Any] = {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "sidetok",
            "root": model.path,
            "max_model_len": model.max_model_len or None,
            "aliases": list(model.aliases),
            "default": model is self.default,
            "state": model.state,
            "error": model.error,
            "engine": None,
            "routes": None,
            "tokenizer": None,
        }
        if (tokenizer := model.tokenizer) is not None:
            item["engine"] = {"name": tokenizer.engine, "reason": tokenizer.engine_reason}
            item["routes"] = {
                "cpu": {"serves": True, "reason": tokenizer.engine_reason},
                "gpu": self._on_gpu(tokenizer),
            }
            item["tokenizer"] = {
                "digest": tokenizer.spec.digest,
                "family": tokenizer.spec.pattern_family,
                "normalizer": tokenizer.spec.normalizer,
                "vocab_size": tokenizer.vocab_size,
                "added_tokens": len(tokenizer.spec.added_tokens),
                "chat_template": model.chat_template is not None,
            }
        return item


def _files_of(model: Model) -> ModelFiles:
    files = read_embedded_files() if model.path == EMBEDDED else read_model_files(Path(model.path))
    if model.template_path:
        files = replace(files, chat_templates={"default": read_template(Path(model.template_path))})
    return files


def _parse_models(arguments: Iterable[str]) -> dict[str, Model]:
    """`NAME=PATH`, or PATH alone, named after its folder; nothing at all is the embedded model."""
    models: dict[str, Model] = {}
    for argument in arguments:
        name, path = _split_model(argument)
        if name in models:
            raise ValueError(f"--model {argument}: there are two models named {name!r}; give one another name")
        models[name] = Model(name, path)
    return models or {EMBEDDED_MODEL: Model(EMBEDDED_MODEL, EMBEDDED)}


def _split_model(argument: str) -> tuple[str, str]:
    name, equals, path = argument.partition("=")
    # A path may contain '=', and a name a '/' (`Qwen/Qwen3-8B`): what begins as a path or exists as it stands is one.
    if not equals or name.startswith(("/", "./", "../", "~")) or Path(argument).exists():
        whole = Path(argument)
        folder = whole.parent if whole.suffix == ".json" else whole
        name, path = folder.resolve().name, argument
    if not name.strip() or not path.strip():
        raise ValueError(f"--model {argument}: expected NAME=PATH")
    return name, path


def _parse_aliases(arguments: Iterable[str], models: dict[str, Model]) -> dict[str, Model]:
    """Every name, models first. An alias may not stand for an alias, nor hide another name."""
    names = dict(models)
    for argument in arguments:
        alias, equals, target = argument.partition("=")
        if not equals or not alias.strip() or not target.strip():
            raise ValueError(f"--alias {argument}: expected NAME=MODEL")
        if target not in models:
            raise ValueError(f"--alias {argument}: there is no model named {target!r}; there are {', '.join(models)}")
        if alias in names:
            raise ValueError(f"--alias {argument}: the name {alias!r} is taken")
        names[alias] = models[target]
    return names


def _log_load(model: Model) -> None:
    if model.is_removed:
        return
    fields: dict[str, Any] = {"model": model.name, "load_s": round(model.load_s, 3)}
    if model.tokenizer is None or model.state == "failed":
        log.error("model failed", extra={**fields, "reason": model.error})
        return
    fields |= {"engine": model.tokenizer.engine, "reason": model.tokenizer.engine_reason}
    log.info("model ready", extra=fields)
    if model.error:
        log.warning("chat template not usable", extra={"model": model.name, "reason": model.error})
