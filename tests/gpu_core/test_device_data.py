"""The folder that programs on a device machine read: what it lacks is said in a sentence."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from tests.data import tokenizer_json
from tests.gpu_core.device_data import DeviceData, Missing


def test_what_a_folder_lacks_is_said(tmp_path: Path) -> None:
    """Which file is missing, where its layout is described, and nothing else: no traceback."""
    with pytest.raises(Missing, match=r"tokenizers/NAME/tokenizer\.json\.xz: see \"Benchmarks\" in CONTRIBUTING"):
        DeviceData(tmp_path)
    (tmp_path / "tokenizers" / "byte_bpe").mkdir(parents=True)
    packed = lzma.compress(tokenizer_json("byte_bpe"))
    (tmp_path / "tokenizers" / "byte_bpe" / "tokenizer.json.xz").write_bytes(packed)
    data = DeviceData(tmp_path)
    assert data.tokenizer_json("byte_bpe") == tokenizer_json("byte_bpe")
    with pytest.raises(SystemExit, match=r"has no tokenizers/gpt2/tokenizer\.json\.xz"):
        data.tokenizer_json("gpt2")
    with pytest.raises(Missing, match=r"has no corpora/books\.txt or corpora/books\.jsonl"):
        data.corpus("books")
    with pytest.raises(Missing, match=r"has no corpora/adversarial\.jsonl"):
        data.adversarial()


def test_a_corpus_is_text_or_conversations(tmp_path: Path) -> None:
    """As CONTRIBUTING says; a lone surrogate is no UTF-8, and left out of the tricky texts."""
    (tmp_path / "tokenizers" / "a").mkdir(parents=True)
    (tmp_path / "tokenizers" / "a" / "tokenizer.json.xz").write_bytes(b"")
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "books.txt").write_text("A book.", encoding="utf-8")
    messages = [{"content": "ask"}, {"content": None}, {"content": "answer"}]
    (tmp_path / "corpora" / "agentic.jsonl").write_text(json.dumps({"messages": messages}), encoding="utf-8")
    rows = "\n".join(json.dumps({"text": text}) for text in ("\u00e9", "\ud800"))
    (tmp_path / "corpora" / "adversarial.jsonl").write_text(rows, encoding="utf-8")
    data = DeviceData(tmp_path)
    assert [data.corpus("books"), data.corpus("agentic")] == ["A book.", "ask\nanswer"]
    assert data.adversarial() == ["\u00e9".encode()]
