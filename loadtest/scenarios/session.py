"""A conversation that grows: every call sends all of it again, with an answer and a new message at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadtest.pool import Places
from loadtest.scenarios.scenario import BYTES_PER_TOKEN, CONVERSATIONS, Setting

NEW_TOKENS = (400, 875)
"""Tokens that one call adds, both messages together."""
MESSAGE_TOKENS = 640
"""Size of the messages before the first call."""
MAX_CONTEXT_TOKENS = 1_050_000
MAX_CONTEXT_BYTES = int(MAX_CONTEXT_TOKENS * BYTES_PER_TOKEN)


@dataclass(slots=True)
class Session:
    """Messages by their ends in one stretch of text; the first and the last are the user's."""

    start: int
    ends: list[int] = field(default_factory=list)
    limit: int = 0

    def pieces(self) -> tuple[list[int], list[int]]:
        """Starts and lengths of the messages so far."""
        starts = [self.start, *self.ends[:-1]]
        return starts, [end - start for start, end in zip(starts, self.ends, strict=True)]


def open_session(setting: Setting, number: int, n_tokens: float) -> Session:
    """A session whose first call has about this many tokens."""
    pool = setting.pool
    corpus = CONVERSATIONS if CONVERSATIONS in pool.regions else pool.corpora[number % len(pool.corpora)]
    (start,), (longest,) = setting.dealer.cut(corpus, np.array([setting.size(MAX_CONTEXT_TOKENS)], np.int64))
    session = Session(int(start), limit=int(start + longest))
    n_bytes = setting.size(n_tokens)
    n_messages = max(1, round(n_bytes / setting.size(MESSAGE_TOKENS))) | 1
    _add_messages(setting, session, start + np.linspace(0, n_bytes, n_messages + 1)[1:].astype(np.int64))
    return session


def grow(setting: Setting, session: Session) -> None:
    """Add the messages of one more call."""
    n_bytes = setting.size(setting.rng.uniform(*NEW_TOKENS))
    end = session.ends[-1]
    _add_messages(setting, session, np.array([end + n_bytes // 2, end + n_bytes], np.int64))


def _add_messages(setting: Setting, session: Session, ends: Places) -> None:
    # A session at the end of its text stays as it is.
    session.ends += setting.pool.next_character(np.minimum(ends, session.limit), session.limit).tolist()
