"""JSON over HTTP to a tokenizer and an engine, on TCP or a Unix socket, with nothing but the standard library."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 300.0


class RefusedError(Exception):
    """An answer that is no success; the message has its status and what it says."""


class Peer:
    """A server at `http://HOST:PORT` or `unix:PATH`, over one connection that is kept."""

    def __init__(self, address: str) -> None:
        self._connection = connect(address, TIMEOUT_S)

    def post(self, path: str, body: Any) -> Any:
        """The answer to a JSON body. Raises `RefusedError`, and `OSError` when nobody answers."""
        data = json.dumps(body).encode()
        self._connection.request("POST", path, data, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RefusedError(f"{path} answered {answer.status}: {text[:1024].decode(errors='replace')}")
        return json.loads(text)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def parse_peers(program: str, engine: str) -> argparse.Namespace:
    """`tokenizer`, `engine`, `model` and `text` from the command line; `engine` is the engine's usual address."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--tokenizer", default="http://127.0.0.1:8400", help="http://HOST:PORT or unix:PATH of sidetok")
    parser.add_argument("--engine", default=engine, help="http://HOST:PORT of the engine")
    parser.add_argument("--model", default="model")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("text", help="what the user says")
    return parser.parse_args()


def conversation(model: str, text: str, max_tokens: int) -> dict[str, Any]:
    """The body of a chat completion."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}


def connect(address: str, timeout_s: float) -> http.client.HTTPConnection:
    """A connection to `http://HOST:PORT` or `unix:PATH`, made with its first request."""
    if address.startswith("unix:"):
        return _UnixConnection(address.removeprefix("unix:"), timeout_s)
    url = urlsplit(address)
    if url.scheme != "http" or url.hostname is None:
        raise ValueError(f"{address} is neither http://HOST:PORT nor unix:PATH")
    return http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("sidetok", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
