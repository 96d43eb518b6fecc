"""`sidetok inspect`: what loading finds, as a table and as JSON; one line when a file cannot be served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.inspect_command import inspect

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 3,
            "content": "<end>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "unk_token": None},
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory with every file that is read."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}), encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}), encoding="utf-8")
    return tmp_path


def run(*argv: str) -> int:
    """The command with the reference engine, which needs no proof, and no environment."""
    return inspect([*argv, "--cpu-engine", "reference"], {})


def test_json_has_every_fact(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object with what the files say and which engine serves them."""
    assert run(str(model), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"] == str(model)
    assert facts["normalizer"] == ["NFC", "Lowercase"]
    assert facts["pre_tokenizer"] == ["Whitespace"]
    assert facts["model"] == {"type": "BPE", "entries": 3, "merges": 1}
    assert facts["added_tokens"] == {"count": 1, "special": 1, "normalized": 0}
    assert facts["vocab_size"] == 4
    assert facts["max_id"] == 3
    assert facts["chat_template"] == {"names": ["default"]}
    assert facts["special_tokens"] == {"eos_token": "<end>"}
    assert facts["max_model_len"] == 4096
    assert facts["engine"]["name"] == "reference"
    assert facts["engine"]["reason"]
    assert facts["load_s"] >= 0


def test_the_table_is_aligned_and_says_the_same(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without `--json` each fact is a row, its value in the second column."""
    assert run(str(model)) == 0
    rows = capsys.readouterr().out.splitlines()
    column = rows[0].index(str(model))
    table = {row[:column].strip(): row[column:] for row in rows}
    assert all(row[column - 2 : column] == "  " for row in rows)
    assert table["normalizer"] == "NFC + Lowercase"
    assert table["model"] == "BPE, 3 entries, 1 merges"
    assert table["post processor"] == "none"
    assert table["added tokens"] == "1 (1 special, 0 normalized)"
    assert table["special tokens"] == "eos_token '<end>'"
    assert table["engine"].startswith("reference: ")


def test_a_broken_template_is_shown_and_fails_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text can be served without a template, so a broken one is a fact, not an error."""
    (model / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
    assert run(str(model)) == 0
    assert "default; not usable: " in capsys.readouterr().out


def test_without_a_path_it_is_the_embedded_model(capsys: pytest.CaptureFixture[str]) -> None:
    """`sidetok inspect` alone shows what is served when no model is named."""
    assert run() == 0
    assert "(embedded)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "empty"), (b"\xff\xfe", "UTF-8"), (b"{}", "'model'"), (b"[1", "cut off")]
)
def test_a_broken_file_is_one_line_and_status_1(
    content: bytes, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be served is named with the reason, on standard error."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    assert run(str(path)) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"sidetok inspect: {path}: ")
    assert part in err
    assert err.count("\n") == 1


def test_a_missing_path_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that does not exist, or a directory without a tokenizer, is named once."""
    for path in (tmp_path / "nowhere", tmp_path):
        assert run(str(path)) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert err.count(str(path)) == 1
