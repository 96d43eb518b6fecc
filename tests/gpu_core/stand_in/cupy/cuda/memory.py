"""One error."""


class OutOfMemoryError(Exception):
    """Never raised here."""
