"""The status page: one file that needs nothing else, under a policy that allows nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from tests.fakes import FakeTokenizer
from tests.service_fakes import FakeRegistry, FakeSend, run, running

SVG = "http://www.w3.org/2000/svg"
MIN_CONTRAST = 4.5
"""Of WCAG 2, level AA, for text of this size."""


def answer(method: str = "GET") -> FakeSend:
    """What `/` answers."""
    sent: list[FakeSend] = []

    async def test() -> None:
        async with running(FakeRegistry(first=FakeTokenizer())) as it:
            sent.append(await it.call("/", method=method))

    run(test())
    return sent[0]


@pytest.fixture(scope="module")
def html() -> str:
    """The page."""
    return answer().body.decode()


class Elements(HTMLParser):
    """Names and attributes of all elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.found.append((tag, dict(attrs)))


def test_the_page_and_its_policy() -> None:
    """The policy names the digests of the page's own script and style, and no source that another could come from."""
    send = answer()
    assert send.status == 200
    assert send.headers[b"content-type"] == b"text/html; charset=utf-8"
    assert send.headers[b"x-content-type-options"] == b"nosniff"
    parts = [part.split() for part in send.headers[b"content-security-policy"].decode().split("; ")]
    policy = {name: sources for name, *sources in parts}
    for element in ("script", "style"):
        contents = re.findall(f"<{element}>(.*?)</{element}>", send.body.decode(), re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in contents]
        assert policy.pop(f"{element}-src") == [f"'sha256-{digest}'" for digest in digests]
        assert len(contents) == 1
    assert policy.pop("img-src") == ["data:"]
    assert policy.pop("connect-src") == ["'self'"]
    assert set(policy) == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert all(sources == ["'none'"] for sources in policy.values())


def test_only_get() -> None:
    """Nothing can be sent to it."""
    assert answer("POST").status == 405


def test_nothing_comes_from_elsewhere(html: str) -> None:
    """No element and no line of the script names another host; links are relative, so any prefix of a proxy works."""
    assert re.findall(r"\w+://[^\"'` ]+", html) == [SVG]
    for _, attributes in Elements(html).found:
        for name in ("src", "href"):
            assert not (attributes.get(name) or "").startswith("/")


def test_text_never_becomes_markup(html: str) -> None:
    """The script makes nodes from names of its own, and text; it writes no markup, and elements have no handlers."""
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", html)
    assert not [name for _, attributes in Elements(html).found for name in attributes if name.startswith("on")]


def test_each_control_has_a_name(html: str) -> None:
    """Fields have labels, tables have head cells with a scope, sections have titles."""
    elements = Elements(html).found
    ids = {attributes.get("id") for _, attributes in elements}
    assert {attributes["for"] for tag, attributes in elements if tag == "label" and "for" in attributes} == {"text"}
    assert re.search(r'<label>Model <select id="model">', html)
    assert all(attributes.get("scope") == "col" for tag, attributes in elements if tag == "th")
    sections = [attributes for tag, attributes in elements if tag == "section"]
    assert len(sections) == 3
    assert all(section["aria-labelledby"] in ids for section in sections)
    assert ("html", {"lang": "en"}) in elements


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(html: str, scheme: str) -> None:
    """Text stands out from each background that it is on."""
    blocks = re.findall(r":root \{([^}]*)\}", html)
    colours = dict(re.findall(r"--(\w+): (#\w+)", blocks[0]))
    if scheme == "dark":
        colours |= dict(re.findall(r"--(\w+): (#\w+)", blocks[1]))
    pairs = [("ink", f"c{i}") for i in range(6)] + [("ink", "card")]
    pairs += [(name, "paper") for name in ("ink", "soft", "link", "good", "bad", "wait")]
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in low.items() if ratio < MIN_CONTRAST} == {}


def contrast(one: str, other: str) -> float:
    """The ratio of two colours, as WCAG defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of `#rrggbb` or `#rgb`."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
