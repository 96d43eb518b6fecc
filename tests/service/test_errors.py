"""The table from exceptions to HTTP answers is complete."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import dispatcher
import gpu_core
import service
from dispatcher.errors import DeadlineExceeded, TooBusy
from gpu_core.errors import CallerError, InternalError, OverloadError, SidetokError
from service.errors import TABLE, InvalidBody, status_of

CODES = {CallerError: range(400, 500), OverloadError: (429, 503, 504), InternalError: (500,)}
OUTCOMES = {"bad_request", "unavailable", "shed", "deadline", "cancelled", "error"}


def subclasses(cls: type[SidetokError]) -> Iterator[type[SidetokError]]:
    """The class and all below it."""
    yield cls
    for child in cls.__subclasses__():
        yield from subclasses(child)


def every_error() -> list[type[SidetokError]]:
    """Every error class of the three rooms, found after importing all of their modules."""
    for room in (gpu_core, dispatcher, service):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    rooms = ("gpu_core.", "dispatcher.", "service.")
    return sorted({c for c in subclasses(SidetokError) if c.__module__.startswith(rooms)}, key=lambda c: c.__name__)


ALL = every_error()


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_has_a_row(cls: type[SidetokError]) -> None:
    """Each class that sidetok can raise stands in the table itself, not only through its base."""
    assert cls in TABLE


@pytest.mark.parametrize("cls", list(TABLE), ids=lambda cls: cls.__name__)
def test_rows_fit_their_branch(cls: type[SidetokError]) -> None:
    """The caller's fault is 4xx, overload is 429, 503 or 504, ours is 500; outcomes are a small closed set."""
    row = TABLE[cls]
    assert row.outcome in OUTCOMES
    assert row.type
    for branch, codes in CODES.items():
        if issubclass(cls, branch):
            assert row.code in codes or (cls.__name__ == "UnsupportedTokenizer" and row.code == 501)


def test_the_most_specific_row_counts() -> None:
    """A subclass without a row of its own gets that of its nearest base."""

    class Late(DeadlineExceeded):
        pass

    class Odd(SidetokError):
        pass

    assert status_of(Late("x")) == TABLE[DeadlineExceeded]
    assert status_of(Odd("x")).code == 500


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), MemoryError()])
def test_foreign_errors_are_our_fault(error: BaseException) -> None:
    """What sidetok does not raise itself is a 500."""
    assert status_of(error) == TABLE[InternalError]


def test_errors_carry_what_their_answers_need() -> None:
    """A refusal says why and when to come back; a bad field says which."""
    assert (TooBusy("x", "bytes").reason, TooBusy("x", "bytes", 3).retry_after_s) == ("bytes", 3)
    assert OverloadError("x").retry_after_s > 0
    assert (InvalidBody("x", "text").param, InvalidBody("x").param) == ("text", None)
