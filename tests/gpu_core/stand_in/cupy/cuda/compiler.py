"""One error."""


class CompileException(Exception):
    """Never raised here."""
