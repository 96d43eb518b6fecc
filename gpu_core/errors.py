"""The root of every error that sidetok raises on purpose, in three branches.

The service translates them in one table (`service/errors.py`); a message says what was wrong and what to do,
and never contains text of a document.
"""


class SidetokError(Exception):
    """Base of all errors that sidetok raises on purpose."""


class CallerError(SidetokError):
    """The caller's fault: the same request fails again until it is changed."""


class OverloadError(SidetokError):
    """Nobody's fault: the same request may succeed later or elsewhere."""

    retry_after_s: float = 1.0


class InternalError(SidetokError):
    """Our fault: the request was fine."""


class TokenizerFileError(CallerError):
    """A tokenizer file that cannot be loaded; the message gives the reason."""


class UnsupportedTokenizer(CallerError):
    """A valid tokenizer that this engine or device cannot serve exactly; the message gives the reason."""


class DeviceFault(InternalError):
    """The device failed or stopped answering; only a new process can use it again. The CPU can serve the request."""


class NoFreeContext(OverloadError):
    """Every execution context that would fit holds results that somebody still uses."""


class DeviceUnavailable(InternalError):
    """There is no usable device, driver or CuPy, or not even the smallest size class fits its memory."""
