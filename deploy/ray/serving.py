"""A Ray Serve application: in each replica a whole service, behind one FastAPI ingress.

    serve run deploy.ray.serving:application flags="--model qwen3=/models/Qwen3-8B" gpus=1 max_replicas=8

Serve spreads the requests and scales; what a request gets is what `sidetok serve` answers, at the same paths.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from fastapi import FastAPI, Request
from fastapi.responses import Response
from ray import serve

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.app import App, make_app
from service.hot import Receive, Scope, Send
from service.options import ServiceOptions
from service.registry import Registry
from service.settings import parse_serve
from service.state import Service

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
MAX_ONGOING = 4096
"""Requests that Serve gives to a replica at once; the service itself refuses what it cannot do in time."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What `application` takes, all of it optional."""

    flags: str = ""
    """Flags of `sidetok serve`; those of sockets and signals mean nothing here."""
    gpus: float = 0.0
    """GPUs of a replica. Without, it is a slice of the CPUs."""
    cpus: float = 1.0
    """CPUs of a replica: as many workers, unless `flags` say otherwise."""
    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing_requests: float = 32.0
    """Requests in flight on a replica above which more replicas are started."""

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> Arguments:
        """From the command line or a configuration file of Serve. Raises `ValueError` that names what is wrong."""
        known: dict[str, type] = get_type_hints(cls)
        if unknown := set(args) - set(known):
            raise ValueError(f"there is no argument {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        values = {}
        for name, value in args.items():
            try:
                values[name] = known[name](value)
            except (TypeError, ValueError):
                raise ValueError(f"{name}: {value!r} is not a {known[name].__name__}") from None
        return cls(**values)


ingress = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
"""Hands everything on; the service inside has its own schema and pages."""


class Replica:
    """One service, without sockets of its own."""

    async def __init__(  # type: ignore[misc]
        self, options: ServiceOptions, work: DispatcherOptions, gpu: GpuRouteOptions
    ) -> None:
        """Returns when the models are loaded; Serve sends no request before. Raises `RuntimeError` when none serves."""
        self._service = Service(options, work, Registry(options, work), gpu)
        self._app: App = make_app(self._service)
        await self._service.start()
        self.check_health()

    def check_health(self) -> None:
        """Raise what makes Serve replace the replica: a GPU that is lost does not, the CPU answers."""
        if not self._service.ready:
            errors = {model.name: model.error for model in self._service.registry.models() if model.error}
            raise RuntimeError(f"no model serves: {errors}")

    @ingress.api_route("/{path:path}", methods=METHODS)
    async def hand_on(self, request: Request) -> Response:
        """Answer as the service does."""
        return _FromService(self._app, f"/{request.path_params['path']}")

    def __del__(self) -> None:
        """Stop the threads and the engines; Serve has waited for the requests."""
        # Without the attribute the constructor failed before there was anything to stop.
        if (service := getattr(self, "_service", None)) is not None:
            service.close()


class _FromService(Response):
    """An answer that the service itself writes."""

    def __init__(self, app: App, path: str) -> None:
        super().__init__()
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def without_id(message: Any) -> None:
            # Serve names the request itself, with the client's id where it sent one.
            if message["type"] == "http.response.start":
                headers = [header for header in message["headers"] if header[0] != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        await self._app({**scope, "path": self._path, "root_path": ""}, receive, without_id)


# Once: the ingress is bound to the class.
DEPLOYMENT = serve.deployment(name="sidetok")(serve.ingress(ingress)(Replica))


def application(args: Mapping[str, Any]) -> serve.Application:
    """The application for `serve run`, `serve deploy` and `serve.run`; see `Arguments`."""
    it = Arguments.read(args)
    options, work, gpu = parse_serve(shlex.split(it.flags))
    if not work.cpu_workers:
        work = replace(work, cpu_workers=max(1, round(it.cpus)))
    if not it.gpus:
        gpu = replace(gpu, gpus="none")
    deployment = DEPLOYMENT.options(
        ray_actor_options={"num_cpus": it.cpus, "num_gpus": it.gpus},
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=5,
        graceful_shutdown_timeout_s=options.drain_timeout_s,
        autoscaling_config={
            "min_replicas": it.min_replicas,
            "max_replicas": max(it.min_replicas, it.max_replicas),
            "initial_replicas": it.min_replicas,
            "target_ongoing_requests": it.target_ongoing_requests,
        },
    )
    return deployment.bind(options, work, gpu)
