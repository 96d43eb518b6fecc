"""Timings of a device record become the tables of the page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_core.record import RECORD
from tests.benchmarks.gpu_tables import PAGE, TABLES, filled


def page_of(*names: str) -> str:
    """A page with places for tables."""
    return "\n".join(["# Title", *(f"<!-- timings: {name} -->\nold\n<!-- end -->" for name in names), "text"])


CALL = {"part": "calls", "family": "llama3_1", "input": "books", "tokens": 1234, "call_us": 50.04, "spin_us": 49.0}
CALL |= {"kernels_us": 20.0, "cpu_us": 1234.5}


def test_calls() -> None:
    """A call stands beside the others; what was not measured is a dash."""
    peers = {"gigatoken_us": 1000.0, "gigatoken_new_us": 2000.0, "tokenizers_us": 99_999.9}
    rows: list[dict[str, Any]] = [CALL | peers, CALL | {"input": "code", "gigatoken_us": None}]
    lines = filled(page_of("calls"), rows).splitlines()
    assert "| books | 1,234 | 50.0 | 49.0 | 20.0 | 1,234 | 1,000 / 2,000 | – | 100,000 | 20x |" in lines
    assert "| code | 1,234 | 50.0 | 49.0 | 20.0 | 1,234 | – | – | – | – |" in lines
    assert "old" not in lines
    assert lines[0] == "# Title"
    assert lines[-1] == "text"


def test_worst_cases_are_compared_with_books() -> None:
    """Each family has a table of its own, in multiples of its own first row."""
    row = {"part": "worst", "needs_cpu": 0, "why": [], "kernels_us": 5.0}
    rows = [
        row | {"family": "llama3_1", "input": "books", "call_us": 80.0, "encode_us": 160.0, "fastokens_ms": 10.0},
        row | {"family": "llama3_1", "input": "digits", "call_us": 160.0, "encode_us": 400.0, "packed_us": 200.0},
        row | {"family": "gemma3", "input": "books", "call_us": 100.0, "encode_us": 100.0},
        row | {"family": "gemma3", "input": "bytes", "call_us": 50.0, "encode_us": 50.0, "needs_cpu": 1, "why": ["x"]},
    ]
    text = filled(page_of("worst llama3_1", "worst gemma3"), rows)
    assert "| books | 80.0 | 5.0 | 160 | 10.0 |\n" in text
    assert "| digits | 160 (2.0x) | 5.0 | 400 (2.5x); packed 200 (1.2x) | – |\n<!-- end -->" in text
    assert "| bytes (for the CPU: x) | 50.0 (0.5x) | 5.0 | 50.0 (0.5x) |" in text


def test_waits_and_families() -> None:
    """Rows by way to wait, columns by input; rows by input, columns by family."""
    rows: list[dict[str, Any]] = [
        {"part": "waits", "wait": wait, "input": name, "call_us": 50.0, "cpu_us": cpu}
        for wait, cpu in (("adaptive", 20.0), ("spin", 50.0))
        for name in ("short", "long")
    ]
    others = {"needs_cpu": 1, "encode_us": 99.0, "second_us": 7.0, "left": 1}
    rows += [
        {"part": "families", "family": family, "input": "books", "call_us": 10 * ratio, "kernels_us": 5.0}
        | (others if family == "qwen3" else {"needs_cpu": 0})
        for family, ratio in (("llama3_1", 1.0), ("qwen3", 1.25))
    ]
    text = filled(page_of("waits", "families"), rows)
    assert "| adaptive | 50.0 / 20.0 | 50.0 / 20.0 |\n| spin | 50.0 / 50.0 | 50.0 / 50.0 |" in text
    assert "| books | 10.0 / 5.0 (1.00x) | 12.5 / 5.0 + 7.0 (1.25x), second try 99.0 CPU |" in text
    others |= {"needs_cpu": 0, "left": 0}
    assert "| 12.5 / 5.0 + 7.0 (1.25x) |" in filled(page_of("families"), [*rows[:-1], rows[-1] | others])


def test_decimals() -> None:
    """One row for each text; a library that was not there is left out."""
    row = {"part": "decimals", "tokens": 3959, "call_us": 33.0, "decimals_us": 41.0, "copy_us": 1.5}
    text = filled(page_of("decimals"), [row | {"input": "16 KiB", "orjson_us": 29.0}, row | {"input": "64 KiB"}])
    assert "| 16 KiB | 3,959 | 33.0 | 41.0 | 1.5 | 29.0 |\n| 64 KiB | 3,959 | 33.0 | 41.0 | 1.5 | – |" in text


def test_tables_without_timings_stay() -> None:
    """A run of some parts leaves the tables of the others alone; a name that nobody knows is an error."""
    assert filled(page_of("calls", "waits"), []) == page_of("calls", "waits")
    with pytest.raises(KeyError):
        filled(page_of("cells"), [])


def test_committed_page_has_a_place_for_every_table() -> None:
    """The page and the record that are committed fit together."""
    page = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        assert page.count(f"<!-- timings: {name} -->") == 1
    assert filled(page, json.loads(RECORD.read_text(encoding="utf-8"))["timings"]).count("<!-- end -->") == len(TABLES)
