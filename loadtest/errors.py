"""What can go wrong with a load test itself; failures of requests are results, not errors."""

from __future__ import annotations


class LoadTestError(Exception):
    """Base of all errors that end a load test; the message says what was wrong and what to do."""


class BadOption(LoadTestError):
    """An option that cannot be understood, or that does not fit the others."""


class TargetUnreachable(LoadTestError):
    """Nothing answers at the target."""


class ClientDied(LoadTestError):
    """A client process ended before its part of the schedule."""


class BadResult(LoadTestError):
    """A file that is not a result of this program."""


class UnreadableAnswer(LoadTestError):
    """An answer whose ids cannot be read."""
