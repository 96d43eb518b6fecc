"""Where requests go. An address names a transport and a place; what goes over it is a wire (`loadtest/wire.py`).

A further transport (a framed socket, shared memory) is another prefix here and another wire there.
"""

from __future__ import annotations

import errno
import http.client
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadtest.errors import BadOption, TargetUnreachable

CONTROL_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 120.0
"""For one answer outside of the load."""
SECTIONS_HEADER = "X-Sidetok-Sections"
"""Names the parts of an octet-stream answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """One address; `path` is that of a Unix socket, else it is TCP."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"http://{self.authority}"

    @property
    def authority(self) -> str:
        """What stands in the Host header."""
        if self.path:
            return "localhost"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def open(self) -> socket.socket:
        """A socket that has begun to connect, and never blocks. Raises `OSError`."""
        sock = self._socket()
        try:
            sock.setblocking(False)
            code = sock.connect_ex(self._address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, "cannot connect")
        except OSError:
            sock.close()
            raise
        return sock

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET, on a connection of its own. Raises `TargetUnreachable`."""
        status, body, _ = self._ask("GET", path, None, {}, CONTROL_TIMEOUT_S)
        return status, body

    def post(self, path: str, content_type: str, body: bytes) -> tuple[int, bytes, str]:
        """Status, body and sections header of a POST, on a connection of its own. Raises `TargetUnreachable`."""
        return self._ask("POST", path, body, {"Content-Type": content_type}, ANSWER_TIMEOUT_S)

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection(self.authority, timeout=timeout_s)
        try:
            sock = self._socket()
            sock.settimeout(timeout_s)
            connection.sock = sock
            sock.connect(self._address)
            connection.request(method, path, body, {**headers, "Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheader(SECTIONS_HEADER, "")
        except (OSError, http.client.HTTPException) as error:
            raise TargetUnreachable(f"{self} does not answer: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    def _socket(self) -> socket.socket:
        if self.path:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    @property
    def _address(self) -> str | tuple[str, int]:
        return self.path or (self.host, self.port)


def parse_target(text: str) -> Target:
    """`http://HOST:PORT` or `unix:PATH`; names are looked up once, here. Raises `BadOption`."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise BadOption("--target unix: lacks the path of a socket")
        return Target("", 0, path)
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
        raise BadOption(f"--target {text!r} is neither http://HOST:PORT nor unix:PATH")
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise BadOption(f"--target {text!r}: {error}") from error
    # IPv4 first: a server that listens on "localhost" most often means that.
    address = min(found, key=lambda item: item[0] != socket.AF_INET)[4]
    return Target(str(address[0]), int(address[1]))
