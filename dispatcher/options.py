"""Knobs of the dispatcher; each once, with its default and one line of documentation in `metadata`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def knob(default: Any, doc: str, choices: tuple[str, ...] | None = None, at_most: float | None = None) -> Any:
    """A dataclass field with the documentation that flags, environment names and the settings page are made from.

    Numbers are never negative; `at_most` is the largest one allowed, if there is one.
    """
    return field(default=default, metadata={"doc": doc, "choices": choices, "at_most": at_most})


@dataclass(frozen=True, slots=True)
class DispatcherOptions:
    """Where and when work runs."""

    cpu_workers: int = knob(0, "Worker threads for parsing, encoding and writing answers; 0 = one per CPU, at least 4.")
    cpu_engine: str = knob(
        "auto",
        "CPU engine; auto = the first of fastokens, gigatoken, reference that is proven for the model.",
        ("auto", "fastokens", "gigatoken", "reference"),
    )
    shadow_check: float = knob(
        0.0, "Fraction of encode requests that the reference re-encodes off the path (0 to 1).", at_most=1
    )
    cache_dir: str = knob("", "Directory of cached proofs; empty = $XDG_CACHE_HOME/sidetok or ~/.cache/sidetok.")
    max_in_flight: int = knob(4096, "Requests in flight; one more is refused with 429.")
    max_in_flight_bytes: int = knob(1 << 30, "Body bytes in flight; more is refused with 429.")
    timeout_s: float = knob(
        60.0, "Seconds until a request without a deadline of its own is answered with 504; 0 = never."
    )
