"""The status page in a real browser: Chromium without a window, where it and Playwright are installed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference

from tests.data import tokenizer_json
from tests.end_to_end.harness import LIMIT_S, ServiceProcess, eventually, serving

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

EVIL = '<img src=x onerror="document.title=1">'
TEXTS = ["Hello, world!", "日本語 and 😀😀\n\ttabs", EVIL + "</textarea><script>document.title=2</script>", "é" * 30]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser that is shared by the tests."""
    with playwright.sync_playwright() as it:
        # Root has no sandbox of its own, and containers give little memory to /dev/shm.
        arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        chromium = it.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=LIMIT_S * 1000)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service whose model has markup for a name, and one that does not load."""
    folder = tmp_path_factory.mktemp("page")
    path = folder / "tokenizer.json"
    path.write_bytes(tokenizer_json("byte_bpe"))
    models = ("--model", f"<i>evil={path}", "--model", f"broken={folder / 'nothing'}", "--alias", "<b>also=<i>evil")
    with serving(folder, *models, "--gpus", "none") as process:
        yield process


class Visit:
    """An open page, what it asked for, and what went wrong on it."""

    def __init__(self, browser: Any, service: ServiceProcess) -> None:
        self.origin = f"http://127.0.0.1:{service.port}"
        self.page = browser.new_page(viewport={"width": 1180, "height": 1100})
        self.page.set_default_timeout(LIMIT_S * 1000)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.goto(self.origin + "/")
        self.page.wait_for_selector("#models tr")

    def tokenize(self, text: str) -> None:
        """Type a text, and press the keys that send it."""
        self.page.fill("#text", text)
        with self.page.expect_response("**/v1/encode"):
            self.page.press("#text", "Control+Enter")
        self.expect("#summary").not_to_have_text(re.compile("^…?$"))

    def pause(self) -> None:
        """Let the page show no news from here on: not even what it has asked for by now."""
        self.page.click("#pause")
        eventually(lambda: not self.page.evaluate("waiting"))

    def expect(self, selector: str) -> Any:
        """What is going to be true of an element."""
        playwright.expect.set_options(timeout=LIMIT_S * 1000)
        return playwright.expect(self.page.locator(selector).first)

    def ids(self) -> list[int]:
        """The ids in the coloured tokens."""
        return [int(word) for words in self.page.locator("#tokens .id").all_text_contents() for word in words.split()]


@pytest.fixture
def visit(browser: Any, service: ServiceProcess) -> Iterator[Visit]:
    """A visit to the service of this folder's tests."""
    it = Visit(browser, service)
    yield it
    it.page.close()
    assert it.wrong == []
    assert [url for url in it.asked if not url.startswith((it.origin, "data:"))] == []


def test_models_and_state(visit: Visit) -> None:
    """The page says that the service is ready, which models there are, and which routes serve them and why."""
    visit.expect("#state").to_have_text("ready")
    row = visit.page.locator("#models tr").inner_text()
    assert re.search(r"small\s+default, also short\s+ready\s+serves: proven", row)
    assert "does not serve: no " in row
    visit.expect("#version").to_have_text(re.compile("^version "))


def test_a_text_and_its_tokens(visit: Visit, reference: Reference) -> None:
    """The ids are the reference's, the tokens together are the text, and no text becomes markup."""
    visit.tokenize(TEXTS[0])
    assert visit.ids() == reference.encode(TEXTS[0]).ids
    assert visit.page.locator("#tokens .text").first.inner_text() == "<s>"
    visit.page.uncheck("#special")
    for text in TEXTS:
        visit.tokenize(text)
        assert visit.ids() == reference.encode(text, add_special_tokens=False).ids
        shown = "".join(visit.page.locator("#tokens .text").all_text_contents())
        assert shown.replace("⏎\n", "\n").replace("⇥\t", "\t").replace("·", " ") == text
        assert visit.page.locator("#rows tr").count() == len(visit.ids())
        assert visit.page.locator("#tokens img, #tokens script").count() == 0
    assert visit.page.title() == "sidetok"


def test_offsets_are_told(visit: Visit) -> None:
    """Each token has its id, characters and bytes, also as a table."""
    visit.page.uncheck("#special")
    visit.tokenize("é x")
    title = visit.page.locator("#tokens li").last.get_attribute("title")
    assert re.fullmatch(r"(.|\n)*id \d+, token Ġ?x, characters \d to 3, bytes \d to 4", title)
    visit.page.click("summary")
    assert (
        visit.page.locator("#rows tr").last.inner_text().split()[-2:]
        == re.findall(r"\d–\d", title.replace(" to ", "–"))[-2:]
    )


def test_figures_by_route(visit: Visit) -> None:
    """After requests there is a row for the CPU route with what they took, and none for a route that serves nothing."""
    for _ in range(3):
        visit.tokenize("some text")
    visit.expect("#routes tr").to_have_text(re.compile(r"^cpu.*(ms|µs).*%"))
    if "does not serve" in visit.page.locator("#models tr").inner_text():
        playwright.expect(visit.page.locator("#routes tr")).to_have_count(1)
    assert "in flight" in visit.page.locator("#flow").inner_text()


def test_what_the_service_refuses_is_said(visit: Visit) -> None:
    """The message of an error stands where the result would."""
    # News of the models would take away what is added here.
    visit.pause()
    visit.page.evaluate("document.getElementById('model').add(new Option('gone', 'gone', true, true))")
    visit.tokenize("text")
    assert "`gone` does not exist" in visit.page.locator("#summary").inner_text()
    # The browser itself reports the status.
    visit.wrong.clear()


def test_names_from_outside_stay_text(browser: Any, evil: ServiceProcess) -> None:
    """A model's name, alias, path and reason may be markup; they are shown as they are. A failed model says why."""
    visit = Visit(browser, evil)
    rows = visit.page.locator("#models").inner_text()
    assert "<i>evil" in rows
    assert "also <b>also" in rows
    assert "no such file or directory" in rows
    assert visit.page.locator("#models i, #models b").count() == 0
    visit.tokenize("word")
    assert visit.ids()
    assert visit.wrong == []
    evil.stop()
    visit.expect("#state").to_have_text(re.compile("^not reached"))
    visit.page.close()


def test_a_picture(visit: Visit, tmp_path: Path) -> None:
    """The page can be drawn whole; `SIDETOK_PICTURE` names a file that keeps it."""
    for text in TEXTS * 3:
        visit.tokenize(text)
    visit.page.fill("#text", "Hello, world! Tokens of text, código, 日本語 and 😀.\n\tif x == 1: return <b>None</b>")
    visit.page.click("button[type=submit]")
    visit.expect("#routes tr").to_have_text(re.compile(r"^cpu.*(ms|µs)"))
    visit.expect("#routes svg").to_be_visible()
    path = Path(os.environ.get("SIDETOK_PICTURE") or tmp_path / "page.png")
    visit.page.screenshot(path=path, full_page=True)
    assert path.read_bytes().startswith(b"\x89PNG")
