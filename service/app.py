"""The FastAPI app: control endpoints through the router, hot endpoints past it.

The hot endpoints stand in the OpenAPI schema like any other; requests for them go to `HotPath` before FastAPI's
middleware and router.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response

from service import __version__
from service.dialects import dialect_endpoints
from service.endpoint import Answer, Endpoint
from service.head import request_id_of
from service.hot import Receive, Scope, Send
from service.native import Count, Decode, Encode
from service.openapi import paths
from service.state import Service
from service.status_page import status_page
from service.tokenizer_admin import tokenizer_router

HEALTH_PATHS = ("/health", "/healthz", "/live", "/liveness")
_HEALTHY = {"status": "ok"}
_METHOD_NOT_ALLOWED = orjson.dumps({"detail": "Method Not Allowed"})


class App(FastAPI):
    """FastAPI with a table of hot endpoints in front."""

    def __init__(self, service: Service) -> None:
        super().__init__(title="sidetok", version=__version__, redoc_url=None)
        self._service = service
        self._hot = service.hot
        service.gate.endpoints = self._endpoints = endpoints(service)
        service.gate.constants = dict.fromkeys(HEALTH_PATHS, Answer(orjson.dumps(_HEALTHY)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        endpoint = self._endpoints.get(scope["path"])
        if endpoint is not None and scope["method"] == "POST":
            await self._hot(endpoint, scope, receive, send)
            return
        send = _with_request_id(scope, send)
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        if endpoint is not None:
            await _method_not_allowed(send)
        else:
            await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The schema of all endpoints, hot ones included."""
        if self.openapi_schema is None:
            schema = get_openapi(title=self.title, version=self.version, routes=self.routes)
            schema["paths"] = {**paths(self._endpoints), **schema["paths"]}
            self.openapi_schema = schema
        return self.openapi_schema


def endpoints(service: Service) -> dict[str, Endpoint]:
    """All hot endpoints by path."""
    registry = service.registry
    options = service.options
    return {
        "/v1/encode": Encode(registry),
        "/v1/decode": Decode(registry),
        "/v1/count": Count(registry),
        **dialect_endpoints(registry, options.dialect, options.trust_request_chat_template),
    }


def make_app(service: Service) -> App:
    """The app with its control endpoints."""
    app = App(service)

    async def health() -> dict[str, str]:
        """Whether the process works. 200 as soon as it listens, also while models load and while it drains."""
        return _HEALTHY

    async def ready() -> JSONResponse:
        """Whether the service wants traffic: models loaded and proven, not draining."""
        states = {model.name: model.state for model in service.registry.models()}
        status = service.status
        return JSONResponse({"status": status, "models": states}, 200 if status == "ready" else 503)

    async def models() -> dict[str, Any]:
        """The models, which engine serves each, and why."""
        return {"object": "list", "data": service.registry.describe()}

    async def metrics() -> Response:
        """Prometheus metrics."""
        try:
            body = await service.exposition()
        except TimeoutError:
            return Response(status_code=503)
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def version() -> dict[str, str | int]:
        """Version of the service and of Python, and the process id."""
        return {"version": __version__, "python": sys.version.split()[0], "pid": os.getpid()}

    async def page() -> Response:
        """The status page."""
        return status_page()

    app.get("/", include_in_schema=False)(page)
    for path in HEALTH_PATHS:
        app.get(path, tags=["health"])(health)
    for path in ("/ready", "/readiness"):
        app.get(path, tags=["health"])(ready)
    app.get("/v1/models", tags=["models"])(models)
    app.get("/metrics", tags=["metrics"])(metrics)
    app.get("/version", tags=["health"])(version)
    if service.options.admin_key:
        app.include_router(tokenizer_router(service))
    return app


def _with_request_id(scope: Scope, send: Send) -> Send:
    """`send`, which names the request in the head of its answer, as hot requests do."""
    request_id = request_id_of(dict(scope["headers"]).get(b"x-request-id")).encode()

    async def named(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
        await send(message)

    return named


def _without_body(send: Send) -> Send:
    """`send` for an answer to HEAD: the head that GET would get."""

    async def headless(message: Any) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return headless


async def _method_not_allowed(send: Send) -> None:
    headers = [
        (b"allow", b"POST"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(_METHOD_NOT_ALLOWED)),
    ]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": _METHOD_NOT_ALLOWED})
