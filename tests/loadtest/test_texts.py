"""Texts: what every machine has, or what a folder holds; always UTF-8, always the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.errors import BadOption
from loadtest.hostile_texts import INVALID, hostile_texts
from loadtest.texts import made_corpora, made_words, read_texts


def test_a_fresh_machine_has_texts() -> None:
    """Without any folder there are three corpora of UTF-8, each large enough to cut many documents from."""
    corpora = made_corpora(1)
    assert set(corpora) == {"prose", "code", "multilingual"}
    for text in corpora.values():
        assert len(text) > 100_000
        assert text.decode().encode() == text


def test_made_words_come_from_the_seed() -> None:
    """Equal seeds give equal words, in several scripts."""
    text = made_words(20_000, 3)
    assert text == made_words(20_000, 3) != made_words(20_000, 4)
    scripts = {ord(character) >> 8 for character in text.decode() if character.isalpha()}
    assert len(scripts) > 4


def test_a_folder_of_texts(tmp_path: Path) -> None:
    """A file is a corpus, a folder is one corpus of its files, rows of messages and of cases are kept apart."""
    (tmp_path / "plain.txt").write_text("plain \u00e9 " * 2000)
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG" * 2000)
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "a.py").write_text("import os\n" * 1000)
    (tmp_path / "source" / "b.c").write_text("int main;\n" * 1000)
    rows = [
        {"messages": [{"role": "user", "content": "Hello"}, {"role": "tool", "content": None}]},
        {"text": "a\ud800b"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = read_texts(str(tmp_path), 1)
    assert list(texts.corpora) == ["plain", "source"]
    assert texts.corpora["source"].count(b"import os") == 1000
    assert texts.corpora["source"].count(b"int main") == 1000
    assert texts.conversations == b"Hello"
    assert texts.cases == (b"ab",)


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_folder_without_text_is_refused(name: str, tmp_path: Path) -> None:
    """No text, no load test."""
    with pytest.raises(BadOption, match="--text"):
        read_texts(str(tmp_path / name), 1)


def test_hostile_texts() -> None:
    """Each is about as long as asked, the same for the same seed, and only one is not UTF-8."""
    texts = hostile_texts(6000, 1)
    assert texts == hostile_texts(6000, 1)
    for name, text in texts.items():
        assert 5000 < len(text) <= 6010, name
        assert (text.decode("utf-8", "ignore").encode() == text) is (name != INVALID)
