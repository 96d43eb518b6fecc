"""A guess at the model that a request names, from a look at its head and at both ends of its body.

Cheap enough for the event loop, which never parses a body. It decides whose share a request counts against and in
which order jobs are taken, and nothing else: the model is what the endpoint reads.
"""

from __future__ import annotations

import re

from service.endpoint import Head

LOOK_BYTES = 512
_QUERY = re.compile(rb"(?:^|&)model=([^&]{1,256})")
_JSON = re.compile(rb'(?<!\\)"model"\s*:\s*"([^"\\]{1,256})"')
_MSGPACK = re.compile(rb"\xa5model([\xa0-\xbf]|\xd9.)", re.DOTALL)


def named_model(head: Head, body: bytes) -> str:
    """The name that seems to be asked for; empty when there is none."""
    if head.query and (found := _QUERY.search(head.query)):
        return found[1].decode(errors="replace")
    is_msgpack = head.content_type.endswith(b"msgpack")
    pattern = _MSGPACK if is_msgpack else _JSON
    found = pattern.search(body, 0, LOOK_BYTES) or pattern.search(body, max(0, len(body) - LOOK_BYTES))
    if found is None:
        return ""
    if not is_msgpack:
        return found[1].decode(errors="replace")
    length = found[1][1] if len(found[1]) == 2 else found[1][0] & 0x1F
    return body[found.end() : found.end() + length].decode(errors="replace")
