"""Log lines on standard error, as text or JSON. Fields given as `extra` follow the message.

Text of documents never gets in: exceptions of other people's code are logged by type and place only, because their
messages may quote what they choked on. Those of sidetok and of the operating system never do, so theirs are kept.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from types import TracebackType
from typing import Any, TextIO

import orjson

from gpu_core.errors import SidetokError

QUOTABLE = (SidetokError, OSError, ImportError)
"""Exceptions whose messages cannot quote a document."""

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def configure(level: str, style: str, stream: TextIO | None = None, **always: object) -> None:
    """Send every logger's lines, uvicorn's too, to `stream` (standard error by default). `style` is text or json.

    `always`: fields of every line. Replaces what an earlier call set up.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    if always:
        handler.addFilter(_Fields(always))
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    # Warnings of the interpreter belong to the log, too.
    logging.captureWarnings(True)


class _Fields(logging.Filter):
    """Gives fields to every line."""

    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).update(self._fields)
        return True


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info     sidetok.server: message key=value`, one line but for tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        head = f"{_timestamp(record)} {record.levelname.lower():<8} {record.name}: {_one_line(record.getMessage())}"
        line = " ".join([head, *(f"{key}={_plain(value)}" for key, value in _extra(record).items())])
        place = _exception(record)
        return f"{line}\n{place}" if place else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ts`, `level`, `logger`, `message`, the extra fields, `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        # The fixed fields come last, so that no extra field can take their place.
        fields: dict[str, Any] = dict(_extra(record))
        fixed = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if place := _exception(record):
            fixed["exception"] = place
        ordered = {**fixed, **fields, **fixed}
        return orjson.dumps(ordered, default=_printable, option=orjson.OPT_NON_STR_KEYS).decode()


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {
        key: value.decode("latin-1") if isinstance(value, bytes) else value
        for key, value in vars(record).items()
        if key not in _RECORD_FIELDS
    }


def _printable(value: object) -> str:
    return str(value)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)[1:-1].replace('\\"', '"')


def _plain(value: object) -> str:
    """A value that cannot be taken for the next key or the next line."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _exception(record: logging.LogRecord) -> str:
    """Where the exception came from, its causes included; see the top of this file for why not all it says."""
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    lines: list[str] = []
    error: BaseException | None = record.exc_info[1]
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        said = f": {_one_line(str(error))}" if isinstance(error, QUOTABLE) else ""
        lines.append(f"{'caused by ' if lines else ''}{type(error).__module__}.{type(error).__qualname__}{said}")
        lines += _frames(error.__traceback__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(lines)


def _frames(traceback: TracebackType | None) -> list[str]:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append(f"  {code.co_filename}:{traceback.tb_lineno} in {code.co_qualname}")
        traceback = traceback.tb_next
    return frames
