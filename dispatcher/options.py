"""Knobs of the dispatcher; each once, with its default and one line of documentation in `metadata`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def knob(
    default: Any, doc: str, choices: tuple[str, ...] | None = None, at_least: float = 0, at_most: float | None = None
) -> Any:
    """A dataclass field with the documentation that flags, environment names and the settings page are made from.

    `at_least` and `at_most` bound a number.
    """
    metadata = {"doc": doc, "choices": choices, "at_least": at_least, "at_most": at_most}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class DispatcherOptions:
    """Where and when work runs."""

    cpu_workers: int = knob(
        0, "Threads that parse, encode and write answers; 0 = one per CPU that the process may use, at least 4."
    )
    cpu_engine: str = knob(
        "auto",
        "CPU engine; auto = the first of fastokens, gigatoken, reference that is proven for the model.",
        ("auto", "fastokens", "gigatoken", "reference"),
    )
    shadow_check: float = knob(
        0.0, "Fraction of encode requests that the reference re-encodes off the path (0 to 1).", at_most=1
    )
    cache_dir: str = knob("", "Directory of cached proofs; empty = $XDG_CACHE_HOME/sidetok or ~/.cache/sidetok.")
    policy: str = knob(
        "adaptive",
        "Route of requests that name none; adaptive = the one where the answer is expected first.",
        ("adaptive", "cpu", "gpu"),
    )
    max_reference_bytes: int = knob(
        16 << 20,
        "Longest document that the reference engine gets as a whole (it takes some 150 times its size of memory); "
        "0 = any. A longer one is refused with 413, unless it can be cut into pieces with the same ids.",
    )
    max_in_flight: int = knob(4096, "Requests in flight; one more is refused with 429.", at_least=1)
    max_in_flight_bytes: int = knob(1 << 30, "Body bytes in flight; more is refused with 429.")
    max_wait_s: float = knob(
        30.0,
        "Longest wait, as predicted from what is in flight and how fast it is answered, before a request is refused "
        "with 429; 0 = any.",
    )
    fair_above: float = knob(
        0.5,
        "Fraction of a limit in use above which no client and no model may hold more than its fair share of it; "
        "1 = never.",
        at_most=1,
    )
    timeout_s: float = knob(
        60.0, "Seconds until a request without a deadline of its own is answered with 504; 0 = never."
    )
