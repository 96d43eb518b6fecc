"""Log: one line per event, fields beside the message, nothing of a document."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.errors import InvalidOption
from service import log

SECRET = "the text of a document"


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Leave logging as it was, so that other tests still see their records."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


def lines(style: str, level: str = "info", logger: str = "sidetok.test", **kwargs: Any) -> list[str]:
    """What one error record with these arguments becomes."""
    stream = io.StringIO()
    log.configure(level, style, stream)
    logging.getLogger(logger).error(kwargs.pop("message", "it happened"), **kwargs)
    return stream.getvalue().splitlines()


def test_json_line_has_the_fields_in_order() -> None:
    """A JSON line starts with ts, level, logger, message and carries the extra fields with their types."""
    extra = {"request_id": "r1", "route": "cpu", "duration": 0.25, "n_documents": 3}
    (line,) = lines("json", extra=extra)
    fields = json.loads(line)
    assert list(fields) == ["ts", "level", "logger", "message", *extra]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields["ts"])
    assert fields["level"] == "error"
    assert fields["logger"] == "sidetok.test"
    assert fields["message"] == "it happened"
    assert {key: fields[key] for key in extra} == extra


def test_extra_fields_cannot_take_the_place_of_fixed_ones() -> None:
    """A field named like a fixed one does not forge it."""
    (line,) = lines("json", extra={"level": "debug", "ts": "never"})
    assert json.loads(line)["level"] == "error"
    assert json.loads(line)["ts"] != "never"


def test_values_of_any_type_are_written() -> None:
    """Bytes become text, and what JSON does not know becomes its `str`."""
    (line,) = lines("json", extra={"traceparent": b"00-ab", "kind": ValueError, "odd": {1: {2}}})
    fields = json.loads(line)
    assert fields["traceparent"] == "00-ab"
    assert fields["kind"] == "<class 'ValueError'>"


def test_text_line() -> None:
    """A text line has time, level, logger, message, then key=value."""
    (line,) = lines("text", extra={"request_id": "r1", "duration": 0.0001234567})
    assert re.fullmatch(r"\S+Z error    sidetok\.test: it happened request_id=r1 duration=0\.000123457", line)


@pytest.mark.parametrize("value", ["a\nfake line", "a=b c", 'q"', "", "\x1b[31m", "\u2028"])
def test_text_values_cannot_forge_lines_or_fields(value: str) -> None:
    """A value with spaces, quotes, control characters or line ends is quoted."""
    (line,) = lines("text", extra={"request_id": value})
    quoted = line.partition("request_id=")[2]
    assert json.loads(quoted) == value
    assert quoted.isprintable()


def test_lists_are_written_with_commas() -> None:
    """A list of plain values needs no quotes."""
    (line,) = lines("text", extra={"addresses": ["http://127.0.0.1:1", "unix:/run/s.sock"]})
    assert line.endswith("addresses=http://127.0.0.1:1,unix:/run/s.sock")


def test_a_message_stays_on_one_line() -> None:
    """Line ends in a message are escaped in text lines."""
    (line,) = lines("text", message="first\nsecond")
    assert line.endswith(r"first\nsecond")


@pytest.mark.parametrize("style", ["text", "json"])
def test_foreign_exceptions_are_logged_without_their_message(style: str) -> None:
    """An exception of other code, and its causes, show type and place, but not what they quote."""
    try:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(SECRET) from error
    except ValueError:
        output = "\n".join(lines(style, exc_info=True))
    assert SECRET not in output
    assert "builtins.ValueError" in output
    assert "caused by builtins.KeyError" in output
    assert "test_log.py" in output


@pytest.mark.parametrize("error", [InvalidOption("max_tokens is below 0"), OSError(98, "Address already in use")])
def test_our_exceptions_and_the_systems_keep_their_message(error: Exception) -> None:
    """What sidetok and the operating system say is needed to act, and quotes no document."""
    try:
        raise error
    except type(error):
        output = "\n".join(lines("text", exc_info=True))
    assert str(error) in output


def test_level_is_honoured_and_configure_replaces() -> None:
    """Below the level nothing is written, and a second call does not double the lines."""
    stream = io.StringIO()
    log.configure("warning", "text", io.StringIO())
    log.configure("warning", "text", stream)
    logging.getLogger("sidetok.test").info("quiet")
    logging.getLogger("sidetok.test").warning("loud")
    assert stream.getvalue().count("\n") == 1
    assert "loud" in stream.getvalue()


@pytest.mark.parametrize("name", ["uvicorn", "uvicorn.error", "uvicorn.access"])
def test_uvicorns_lines_look_like_ours(name: str) -> None:
    """uvicorn's own handlers and its coloured copies of messages are dropped."""
    logging.getLogger(name).addHandler(logging.NullHandler())
    (line,) = lines("json", logger=name, extra={"color_message": "x"})
    assert "color_message" not in json.loads(line)
    assert logging.getLogger(name).handlers == []
