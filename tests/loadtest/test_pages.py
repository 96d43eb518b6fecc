"""The pages on load tests: commands that can be run, tables of what the code does, figures that are results."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from loadtest.bench.bench import MAKERS
from loadtest.bench.cli import _parser
from loadtest.capacity_page import EMPTY, page
from loadtest.cli import COMMANDS, parse_run, parse_versus
from loadtest.result import read_result
from loadtest.scenarios import SCENARIOS
from loadtest.versus import FORMAT as VERSUS
from loadtest.versus import went_wrong
from loadtest.versus_report import versus_table
from tests.loadtest.results import result_of, step_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "loadtest.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
WORDS = [shlex.split(line, comments=True) for line in LINES]
RIVAL_RUNS = ("tokenize", "chat", "health", "short")
COMMAND_LINES = [words for words in WORDS if words and words[0].endswith(("sidetok-loadtest", "sidetok-bench"))]
COMMAND_LINES += [["sidetok-loadtest", *words] for words in WORDS if words and words[0] == "versus"]


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_commands_of_the_page_can_be_run(words: list[str]) -> None:
    """Every command line that stands there is understood."""
    if words[0].endswith("sidetok-bench"):
        assert _parser().parse_args(words[1:]).sizes
    elif words[1] == "run":
        assert parse_run(words[2:])[0] in SCENARIOS
    elif words[1] == "versus":
        assert parse_versus([word for word in words[2:] if word not in ("$SERVERS", "$CHATS")])[0].rounds > 1
    else:
        assert words[1] in COMMANDS


def test_the_page_names_everything() -> None:
    """Each scenario with its groups, and each contender."""
    for name in SCENARIOS:
        assert f"| `{name}` |" in PAGE
    for name in MAKERS:
        assert f"`{name}`" in PAGE


def test_the_table_of_rivals_is_what_the_results_say() -> None:
    """The page on performance has the medians of the committed comparisons, in which no id differed."""
    results = [read_result(DOCS / "results" / "rival" / f"{name}.json", VERSUS) for name in RIVAL_RUNS]
    assert not any(map(went_wrong, results))
    assert versus_table(results) in (DOCS / "performance.md").read_text(encoding="utf-8")


def test_the_capacity_page_is_what_the_results_say() -> None:
    """Nobody writes a figure there by hand."""
    results = {path.name: read_result(path) for path in sorted((DOCS / "results").glob("*.json"))}
    assert (DOCS / "capacity.md").read_text(encoding="utf-8") == page(results)


def test_a_capacity_page() -> None:
    """Without results there are no figures; with them a row and a source each."""
    assert page({}).endswith(EMPTY)
    text = page({"a.json": result_of(step_of(100), scenario="fleet"), "b.json": result_of(step_of(2000))})
    assert "| fleet | GPU 25 % | 100 |" in text
    assert "| short | GPU 25 % | 2,000 |" in text
    assert "* `a.json`: what it is. 2026" in text
    assert EMPTY not in text
