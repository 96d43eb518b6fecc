"""The command `sidetok-bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from dispatcher.embedded import EMBEDDED_MODEL, embedded_tokenizer_json
from loadtest.bench.bench import FORMAT, MAKERS, Wanted, compare
from loadtest.bench.cells import MAX_BATCHES
from loadtest.bench.report import markdown
from loadtest.bench.timing import Budget
from loadtest.errors import BadOption, LoadTestError
from loadtest.result import read_result, write_result
from loadtest.texts import read_texts
from loadtest.tokenizer_file import name_of, read_tokenizer_file
from service.program import program
from service.settings import Parser

T = TypeVar("T")
SIZES = "128,1024,8192,32768,131072,524288,1000000"
BATCHES = "1,4,16,64,256"


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print the tables, write the result. Status 1: one of our own routes was not exact."""
    arguments = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    try:
        if arguments.report:
            result = read_result(arguments.report, FORMAT)
        else:
            wanted = _wanted(arguments)
            # Written cell by cell, so that a run that is cut short leaves what it has.
            result = compare(wanted, _say, lambda result: write_result(arguments.output, result))
            write_result(arguments.output, result)
        print(markdown(result))
        if arguments.plots:
            from loadtest.bench.plots import draw

            for path in draw(result, arguments.plots, arguments.format):
                print(f"drawn: {path}", file=sys.stderr)
    except LoadTestError as error:
        print(f"sidetok-bench: {error}", file=sys.stderr)
        return 2
    cells = [cell for family in result["families"].values() for cell in family["cells"]]
    inexact = [
        n for cell in cells for n, found in cell["results"].items() if not found["exact"] and n.startswith("sidetok")
    ]
    return 1 if inexact else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="sidetok-bench", description="Tokenizers side by side in one process: equality first, then time."
    )
    add = parser.add_argument
    add("--tokenizer", action="append", default=[], metavar="[NAME=]FILE", help="tokenizer.json, or a folder with one; repeatable. Default: the embedded one.")  # fmt: skip  # noqa: E501
    add("--text", default="", metavar="FOLDER", help="Folder of texts, as of sidetok-loadtest.")
    add("--corpora", default="", metavar="NAMES", help="Corpora by commas. Default: all.")
    add("--sizes", default=SIZES, help=f"Tokens of single documents. Default: {SIZES}.")
    add("--batches", default=BATCHES, help=f"Documents in a batch. Default: {BATCHES}.")
    add("--document-tokens", type=int, default=8192, help="Tokens of each document of a batch. Default: 8192.")
    add("--contenders", default="", metavar="NAMES", help=f"By commas, of {', '.join(MAKERS)}. Default: all.")
    add("--seconds", type=float, default=0.5, help="Time for warm calls of each contender on each cell. Default: 0.5.")
    add("--texts", type=int, default=MAX_BATCHES, help=f"Different texts of each cell. Default: {MAX_BATCHES}.")
    add("--seed", type=int, default=1, help="Of texts that are made here. Default: 1.")
    add("--output", type=Path, default=Path("sidetok-bench.json"), help="File of the result (JSON).")
    add("--report", type=Path, metavar="RESULT", help="Run nothing; show a result that was written before.")
    add("--plots", type=Path, metavar="FOLDER", help="Draw plots into this folder.")
    add("--format", choices=("png", "svg"), default="png", help="Of the plots.")
    return parser


def _wanted(arguments: argparse.Namespace) -> Wanted:
    texts = read_texts(arguments.text, arguments.seed)
    corpora = texts.corpora | ({"conversations": texts.conversations} if texts.conversations else {})
    return Wanted(
        _families(arguments.tokenizer),
        _chosen(corpora, arguments.corpora, "--corpora"),
        texts.origin,
        _numbers(arguments.sizes, "--sizes"),
        _numbers(arguments.batches, "--batches"),
        arguments.document_tokens,
        _chosen(MAKERS, arguments.contenders, "--contenders"),
        Budget(arguments.seconds),
        arguments.texts,
    )


def _families(given: list[str]) -> dict[str, bytes]:
    """Files by name; a name is given, or that of the file's folder."""
    if not given:
        return {EMBEDDED_MODEL: embedded_tokenizer_json()}
    families = {}
    for text in given:
        name, equals, path = text.partition("=")
        place = path if equals else text
        families[name if equals else name_of(place)] = read_tokenizer_file(place)
    return families


def _chosen(known: dict[str, T], text: str, flag: str) -> dict[str, T]:
    names = [name.strip() for name in text.split(",")] if text else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadOption(f"{flag}: {unknown[0]!r} is none of {', '.join(known)}")
    return {name: known[name] for name in names}


def _numbers(text: str, flag: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part]
    except ValueError as error:
        raise BadOption(f"{flag} {text!r} is no list of numbers") from error
    if not all(number > 0 for number in numbers):
        raise BadOption(f"{flag} {text!r} has a number that is not above 0")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
