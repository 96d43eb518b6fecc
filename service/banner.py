"""What a person sees when the service is ready: where it listens, and one request that works, with its answer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import numpy as np
import orjson

from dispatcher.request import EncodeOptions
from service.program import discard
from service.registry import Registry

EXAMPLE_TEXT = "Hello, world!"
"""The text of the example request; the server encodes it to show the answer."""


def show_banner(when: str, registry: Registry, addresses: Sequence[str]) -> None:
    """Print the banner to standard output, as the option `banner` says.

    `addresses` are URLs and `unix:PATH`. Nothing is printed while the default model does not serve.
    """
    model = registry.default
    if when == "never" or (when == "auto" and not sys.stdout.isatty()) or model.state != "ready":
        return
    (encoded,) = model.ready_tokenizer.encode([EXAMPLE_TEXT], EncodeOptions())
    url = next((address for address in addresses if not address.startswith("unix:")), None)
    socket = next((address.removeprefix("unix:") for address in addresses if address.startswith("unix:")), None)
    lines = banner(url, socket, model.name, np.frombuffer(encoded.ids, "<u4").tolist())
    try:
        print(lines, flush=True)
    except OSError:
        # Nobody reads it; that is no reason not to serve.
        discard(sys.stdout)


def banner(url: str | None, socket: str | None, model: str, token_ids_example: Sequence[int]) -> str:
    """The lines to print. `token_ids_example` are the ids of `EXAMPLE_TEXT` under `model`, the default model.

    `url` is None without a TCP listener, `socket` without a Unix socket.
    """
    answer = {"model": model, "count": len(token_ids_example), "ids": list(token_ids_example)}
    lines = ["sidetok is ready"]
    if url:
        lines.append(f"  url     {url}")
    if socket:
        lines.append(f"  socket  {socket}")
    lines += [
        f"  model   {model}",
        f"  try     {example_request(url, socket)}",
        f"  answer  {orjson.dumps(answer).decode()}",
    ]
    return "\n".join(lines)


def example_request(url: str | None, socket: str | None) -> str:
    """A curl line that encodes `EXAMPLE_TEXT`, over TCP where there is a listener, else over the Unix socket."""
    words = ["curl", "-s", f"{url or 'http://localhost'}/v1/encode"]
    if not url and socket:
        words[2:2] = ["--unix-socket", socket]
    words += ["-H", "content-type: application/json", "-d", orjson.dumps({"text": EXAMPLE_TEXT}).decode()]
    return shlex.join(words)
