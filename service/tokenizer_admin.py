"""`/v1/tokenizers`: models that are added and removed while the service runs, for whoever has the key.

The shapes are those of SMG (`crates/protocols/src/tokenize.rs`). A model is loaded in a process of its own, one
after the other; requests for it get 503 until it is proven, all others are served as before.
"""

from __future__ import annotations

import hmac
import logging
import threading
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_core.errors import SidetokError
from service.errors import BodyTooLarge, Conflict, InvalidBody, UnknownModel, status_of
from service.registry import EMBEDDED, Model
from service.state import Service

log = logging.getLogger("sidetok.tokenizers")

MAX_BODY_BYTES = 65_536
STATUS = {"loading": "processing", "ready": "completed", "failed": "failed"}
"""SMG's word for each state of a model."""


class Addition(BaseModel):
    """What is to be added: a directory or tokenizer.json on this machine. Nothing is fetched."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=256, pattern=r"^[!-~]+$")
    source: str = Field(min_length=1, max_length=4096)
    chat_template_path: str | None = Field(None, max_length=4096)


def tokenizer_router(service: Service) -> APIRouter:
    """The endpoints. Every one of them wants the key."""
    router = APIRouter(prefix="/v1/tokenizers", tags=["tokenizers"])
    admin = _Admin(service)

    async def list_all(request: Request) -> JSONResponse:
        """All models."""
        return await admin.answer(request, lambda _: (200, {"tokenizers": [_info(m) for m in admin.models()]}))

    async def add(request: Request) -> JSONResponse:
        """Begin to load a model; its status tells the rest."""
        return await admin.answer(request, admin.add)

    async def one(request: Request, tokenizer_id: str) -> JSONResponse:
        """One model."""
        return await admin.answer(request, lambda _: (200, _info(admin.find(tokenizer_id))))

    async def status(request: Request, tokenizer_id: str) -> JSONResponse:
        """How far its load is."""
        return await admin.answer(request, lambda _: (200, _status(admin.find(tokenizer_id))))

    async def remove(request: Request, tokenizer_id: str) -> JSONResponse:
        """Serve a model no more."""
        return await admin.answer(request, lambda _: admin.remove(admin.find(tokenizer_id)))

    router.get("")(list_all)
    router.post("", status_code=202)(add)
    router.get("/{tokenizer_id}")(one)
    router.get("/{tokenizer_id}/status")(status)
    router.delete("/{tokenizer_id}")(remove)
    return router


class _Admin:
    """What the endpoints do. All methods run on the event loop, and none of them waits for a load."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._key = service.options.admin_key.encode()
        self._one_load = threading.Lock()

    async def answer(self, request: Request, act: Any) -> JSONResponse:
        """The answer of an action, or its error; nothing without the key."""
        if not self._is_admin(request):
            return _error(401, "unauthorized", "This endpoint wants the admin key as `Authorization: Bearer`.")
        try:
            code, fields = act(await _body(request))
        except SidetokError as error:
            row = status_of(error)
            kind = "tokenizer_not_found" if isinstance(error, UnknownModel) else row.type
            return _error(row.code, kind, str(error))
        return JSONResponse(fields, code)

    def models(self) -> list[Model]:
        """All models."""
        return self._service.registry.models()

    def find(self, tokenizer_id: str) -> Model:
        """The model of that id or name. Raises `UnknownModel`."""
        for model in self.models():
            if tokenizer_id in (model.id, model.name):
                return model
        raise UnknownModel("There is no such tokenizer.")

    def add(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Register a model and start its load. Raises `InvalidBody` or `Conflict`."""
        self._check_alone()
        try:
            wanted = Addition.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise InvalidBody(f"{place or 'body'}: {first['msg']}", place) from None
        registry = self._service.registry
        path = EMBEDDED if wanted.source == EMBEDDED else wanted.source
        model = registry.add(wanted.name, path, wanted.chat_template_path or "")
        # A daemon: a load that takes long does not hold up the exit.
        threading.Thread(target=self._load, args=(model,), name="sidetok-load-added", daemon=True).start()
        return 202, {**_status(model), "status": "pending", "message": "The tokenizer is being loaded."}

    def remove(self, model: Model) -> tuple[int, dict[str, Any]]:
        """Take a model out. Raises `Conflict`."""
        self._check_alone()
        self._service.registry.remove(model)
        log.info("model removed", extra={"model": model.name})
        return 200, {"success": True, "message": f"The tokenizer {model.name!r} was removed."}

    def _check_alone(self) -> None:
        if self._service.frontend is not None:
            raise Conflict("With --frontends models come and go with a restart: name them with --model.")

    def _load(self, model: Model) -> None:
        with self._one_load, self._service.dispatcher.clocks.counting("load"):
            self._service.registry.load(model)

    def _is_admin(self, request: Request) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._key)


async def _body(request: Request) -> bytes:
    chunks: list[bytes] = []
    n_bytes = 0
    async for chunk in request.stream():
        n_bytes += len(chunk)
        if n_bytes > MAX_BODY_BYTES:
            raise BodyTooLarge(f"The body is over the limit of {MAX_BODY_BYTES} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)


def _info(model: Model) -> dict[str, Any]:
    vocab_size = model.tokenizer.vocab_size if model.tokenizer is not None else None
    return {"id": model.id, "name": model.name, "source": model.path, "vocab_size": vocab_size}


def _status(model: Model) -> dict[str, Any]:
    info = _info(model)
    return {
        "id": model.id,
        "status": STATUS[model.state],
        "message": model.error or f"The tokenizer is {model.state}.",
        "vocab_size": info["vocab_size"],
    }


def _error(code: int, kind: str, message: str) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if code == 401 else None
    return JSONResponse({"error": {"message": message, "type": kind}}, code, headers)
