"""`/v1/tokenizers`: models that are added and removed while the service runs, for whoever has the key.

The shapes are those of SMG (`crates/protocols/src/tokenize.rs`). A model is loaded in a process of its own, one
after the other; requests for it get 503 until it is proven, all others are served as before.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_core.errors import SidetokError
from service.additions import Change
from service.errors import BodyTooLarge, InvalidBody, UnknownModel, status_of
from service.registry import EMBEDDED, Model
from service.state import Service

MAX_BODY_BYTES = 65_536
STATUS = {"loading": "processing", "ready": "completed", "failed": "failed"}
"""SMG's word for each state of a model."""


Answer = tuple[int, dict[str, Any]]
"""Status and body."""


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
        return await admin.answer(request, lambda _: _known({"tokenizers": [_info(m) for m in admin.models()]}))

    async def add(request: Request) -> JSONResponse:
        """Begin to load a model; its status tells the rest."""
        return await admin.answer(request, admin.add)

    async def one(request: Request, tokenizer_id: str) -> JSONResponse:
        """One model."""
        return await admin.answer(request, lambda _: _known(_info(admin.find(tokenizer_id))))

    async def status(request: Request, tokenizer_id: str) -> JSONResponse:
        """How far its load is."""
        return await admin.answer(request, lambda _: _known(admin.status(admin.find(tokenizer_id))))

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

    async def answer(self, request: Request, act: Callable[[bytes], Awaitable[Answer]]) -> JSONResponse:
        """The answer of an action, or its error; nothing without the key."""
        if not self._is_admin(request):
            return _error(401, "unauthorized", "This endpoint wants the admin key as `Authorization: Bearer`.")
        try:
            code, fields = await act(await _body(request))
        except TimeoutError:
            return _error(503, "ServiceUnavailableError", "The frontends of the service do not answer; try again.")
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
        return self._service.additions.named(tokenizer_id)

    async def add(self, body: bytes) -> Answer:
        """Register a model and start its load. Raises `InvalidBody` or `Conflict`."""
        try:
            wanted = Addition.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise InvalidBody(f"{place or 'body'}: {first['msg']}", place) from None
        path = EMBEDDED if wanted.source == EMBEDDED else wanted.source
        model = await self._change(Change("add", wanted.name, path, wanted.chat_template_path or ""))
        return 202, {**self.status(model), "status": "pending", "message": "The tokenizer is being loaded."}

    async def remove(self, model: Model) -> Answer:
        """Take a model out. Raises `Conflict`."""
        await self._change(Change("remove", model.name))
        return 200, {"success": True, "message": f"The tokenizer {model.name!r} was removed."}

    def status(self, model: Model) -> dict[str, Any]:
        """How far the load of a model is, in the frontend that is farthest behind."""
        state, error = model.state, model.error
        frontend = self._service.frontend
        if frontend is not None and model.is_added:
            state, error = frontend.models.get(model.id, ("loading", None))
        return {
            "id": model.id,
            "status": STATUS[state],
            "message": error or f"The tokenizer is {state}.",
            "vocab_size": _info(model)["vocab_size"],
        }

    async def _change(self, change: Change) -> Model:
        frontend = self._service.frontend
        return self._service.additions.make(change)[0] if frontend is None else await frontend.change(change)

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


async def _known(fields: dict[str, Any]) -> Answer:
    return 200, fields


def _error(code: int, kind: str, message: str) -> JSONResponse:
    headers = {"www-authenticate": "Bearer"} if code == 401 else None
    return JSONResponse({"error": {"message": message, "type": kind}}, code, headers)
