"""One replay as the observed costs want to know it."""

from __future__ import annotations

from typing import NamedTuple


class Replay(NamedTuple):
    """One replay as the observed costs want to know it."""

    model_key: str
    kind: str
    """Content kind of its first group."""
    n_bytes: int
    n_documents: int
    took_ns: int
    """From launch to results at hand."""
    cpu_ns: int
    """Host CPU in all processes."""
    n_unanswered: int
    """Documents that need the CPU."""
    replay_ns: int
    """What the engine says that the replay took; the rest of `took_ns` is the host's."""
