"""The page at `/`: one static file that runs by itself, and the policy that lets it do nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from fastapi.responses import Response


@cache
def _page() -> tuple[bytes, dict[str, str]]:
    html = files("service").joinpath("data/status.html").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(html, 'script')}",
            f"style-src {_hashes(html, 'style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return html.encode(), headers


def status_page() -> Response:
    """The page. Its policy names the digests of its own script and style, so that no other ones run in it."""
    body, headers = _page()
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)


def _hashes(html: str, element: str) -> str:
    """The sources of a policy that allow exactly these elements of a page."""
    contents = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
