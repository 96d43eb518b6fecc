"""The tables of docs/performance.md from the timings in the device record, put where they belong in the page.

    python -m tests.benchmarks.gpu_tables [--record FILE] [--page FILE]

In the page a table stands between `<!-- timings: NAME -->` and `<!-- end -->`, NAME being a key of `TABLES`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_core.record import RECORD

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
ABSENT = "–"
Row = dict[str, Any]


def number(value: float | None) -> str:
    """Three digits or more, as the tables have them."""
    if value is None:
        return ABSENT
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def lines_of(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


def calls_table(rows: list[Row]) -> list[str]:
    """Calls of one tokenizer beside the others."""
    heads = ["input", "tokens", "call", "spin", "kernel", "CPU of a call", "gigatoken warm / new", "tiktoken"]
    heads += ["tokenizers", "call against gigatoken warm"]
    found = []
    for row in rows:
        warm, new, call = row.get("gigatoken_us"), row.get("gigatoken_new_us"), row["call_us"]
        both = ABSENT if warm is None else f"{number(warm)} / {number(new)}"
        own = [number(row[key]) for key in ("call_us", "spin_us", "kernels_us", "cpu_us")]
        others = [both, number(row.get("tiktoken_us")), number(row.get("tokenizers_us"))]
        ratio = ABSENT if warm is None else f"{warm / call:.{int(warm < 10 * call)}f}x"
        found.append([row["input"], f"{row['tokens']:,}", *own, *others, ratio])
    return lines_of(heads, found)


def worst_table(rows: list[Row]) -> list[str]:
    """A megabyte of each kind; in parentheses against a megabyte of books, the first row."""
    books = rows[0]
    engines = [key for key in ("fastokens_ms", "gigatoken_ms", "tokenizers_ms") if key in books]

    def against_books(row: Row, key: str) -> str:
        value = row.get(key)
        if value is None or row is books:
            return number(value)
        return f"{number(value)} ({value / books[key]:.1f}x)"

    heads = ["input", "replay, us", "kernel, us", "encode, us", *(key.replace("_ms", ", ms") for key in engines)]
    found = []
    for row in rows:
        name = row["input"] + (f" (for the CPU: {', '.join(row['why'])})" if row["needs_cpu"] else "")
        encode = against_books(row, "encode_us")
        if "packed_us" in row:
            # The same documents in one buffer instead of a list.
            encode += f"; packed {number(row['packed_us'])} ({row['packed_us'] / books['encode_us']:.1f}x)"
        own = [against_books(row, "call_us"), number(row["kernels_us"]), encode]
        found.append([name, *own, *(against_books(row, key) for key in engines)])
    return lines_of(heads, found)


def waits_table(rows: list[Row]) -> list[str]:
    """Wall and CPU time by way to wait."""
    inputs = list(dict.fromkeys(row["input"] for row in rows))
    by_place = {(row["wait"], row["input"]): f"{number(row['call_us'])} / {number(row['cpu_us'])}" for row in rows}
    ways = dict.fromkeys(row["wait"] for row in rows)
    return lines_of(["wait", *inputs], [[way, *(by_place[way, name] for name in inputs)] for way in ways])


def families_table(rows: list[Row]) -> list[str]:
    """Call and kernels of each tokenizer; in parentheses the call against that of Llama 3.1."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    llama = {row["input"]: row["call_us"] for row in rows if row["family"] == "llama3_1"}
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        ratio = row["call_us"] / llama[row["input"]]
        second = f" + {number(row['second_us'])}" if "second_us" in row else ""
        text = f"{number(row['call_us'])} / {number(row['kernels_us'])}{second} ({ratio:.2f}x)"
        if "encode_us" in row and row.get("left", 1):
            text += f", second try {number(row['encode_us'])}"
        cells.setdefault(row["input"], {})[row["family"]] = text + (" CPU" if row["needs_cpu"] else "")
    found = [[name, *(of.get(family, ABSENT) for family in families)] for name, of in cells.items()]
    return lines_of(["input", *families], found)


def decimals_table(rows: list[Row]) -> list[str]:
    """A call without and with decimals beside what a library of the host takes for the same ids."""
    found = [
        [row["input"], f"{row['tokens']:,}", *(number(row.get(key)) for key in DECIMAL_COLUMNS.values())]
        for row in rows
    ]
    return lines_of(["input", "ids", *DECIMAL_COLUMNS], found)


DECIMAL_COLUMNS = {
    "call": "call_us",
    "call with decimals": "decimals_us",
    "copy of them": "copy_us",
    "orjson": "orjson_us",
}
TABLES: dict[str, tuple[dict[str, str], Callable[[list[Row]], list[str]]]] = {
    "calls": ({"part": "calls"}, calls_table),
    "worst llama3_1": ({"part": "worst", "family": "llama3_1"}, worst_table),
    "worst gemma3": ({"part": "worst", "family": "gemma3"}, worst_table),
    "waits": ({"part": "waits"}, waits_table),
    "families": ({"part": "families"}, families_table),
    "decimals": ({"part": "decimals"}, decimals_table),
}
"""Name in the page -> what its rows have in common, and what makes the table of them."""


def filled(page: str, timings: list[Row]) -> str:
    """The page with the tables whose rows are in the timings; the others stay as they are. Raises `KeyError`."""

    def table(match: re.Match[str]) -> str:
        common, make = TABLES[match[1]]
        rows = [row for row in timings if all(row.get(key) == value for key, value in common.items())]
        return "\n".join([f"<!-- timings: {match[1]} -->", *make(rows), "<!-- end -->"]) if rows else match[0]

    return re.sub(r"<!-- timings: (.+?) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    timings = json.loads(arguments.record.read_text(encoding="utf-8"))["timings"]
    page = arguments.page.read_text(encoding="utf-8")
    arguments.page.write_text(filled(page, timings), encoding="utf-8")


if __name__ == "__main__":
    main()
