"""A service to load, shared by the tests of one worker process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.texts import made_words
from tests.end_to_end.harness import ServiceProcess, serving
from tests.synthetic import SYNTHETIC

TEMPLATE = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
CHAT = {"chat_template": TEMPLATE, "model_max_length": 1 << 20}


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    """A folder with a short path (those of Unix sockets are limited), a small tokenizer file and small texts."""
    with tempfile.TemporaryDirectory(prefix="sidetok-") as folder:
        path = Path(folder)
        (path / "tokenizer.json").write_bytes(SYNTHETIC["byte_bpe"]())
        (path / "chat").mkdir()
        (path / "chat" / "tokenizer.json").symlink_to(path / "tokenizer.json")
        (path / "chat" / "tokenizer_config.json").write_text(json.dumps(CHAT))
        (path / "texts").mkdir()
        for seed, name in enumerate(("one", "two", "three")):
            (path / "texts" / f"{name}.txt").write_bytes(made_words(100_000, seed))
        rows = [{"messages": [{"role": "user", "content": made_words(20_000, seed).decode()}]} for seed in (4, 5)]
        (path / "texts" / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"text": "a\u0338 <s>"}])))
        yield path


@pytest.fixture(scope="session")
def service(home: Path) -> Iterator[ServiceProcess]:
    """A process that serves the small model on the CPU route, and with a chat template under another name."""
    with serving(home, f"--model=small={home / 'tokenizer.json'}", f"--model=chat={home / 'chat'}") as process:
        yield process
