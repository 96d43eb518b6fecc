"""Times of worst cases become a table of ratios."""

from __future__ import annotations

import pytest

from tests.benchmarks.cpu_worst import BOOKS, WARM_UP, Row, ratios_of, table_of


def run_of(books: tuple[float, float], engine: str = "fastokens", **inputs: float) -> list[Row]:
    """Rows of one process, books around all others."""
    cpu_ms = {WARM_UP: 99.0, BOOKS[0]: books[0], **inputs, BOOKS[1]: books[1]}
    common = {"family": "llama3_1", "engine": engine}
    return [common | {"input": name, "cpu_ms": took} for name, took in cpu_ms.items()]


def test_ratios_are_to_the_mean_of_both_megabytes_of_books() -> None:
    """Books that warm up do not count, and books themselves are no row."""
    assert ratios_of(run_of((4.0, 6.0), digits=10.0, letters=50.0)) == pytest.approx({"digits": 2.0, "letters": 10.0})


def test_table_has_medians_and_marks_what_is_above_the_limit() -> None:
    """A line for each engine; an input that one of them did not have is a dash."""
    runs = [run_of((5.0, 5.0), digits=took, letters=55.0) for took in (5.0, 10.0, 50.0)]
    lines = table_of([*runs, run_of((2.0, 2.0), "gigatoken", digits=20.0)])
    assert lines[0] == "| tokenizer | engine | books, ms | digits | letters |"
    assert lines[2:] == ["| llama3_1 | fastokens | 5.0 | 2.0 | **11.0** |", "| llama3_1 | gigatoken | 2.0 | 10.0 | – |"]
