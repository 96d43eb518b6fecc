"""What can go wrong between a request and its ids. The branches are in `gpu_core.errors`."""

from gpu_core.errors import CallerError, InternalError, OverloadError, SidetokError


class InvalidText(CallerError):
    """A document that is not Unicode text: invalid UTF-8 or a lone surrogate."""


class InvalidOption(CallerError):
    """An option whose value cannot be honoured."""


class TextTooLarge(CallerError):
    """A document that only the reference engine can answer, and too large for its memory."""


class NoGpuRoute(OverloadError):
    """The request asks for the GPU route, and no engine is ready for its model."""


class ModelAway(OverloadError):
    """The model has a process of its own, which ended; another one is being started."""


class DispatcherClosed(OverloadError):
    """The dispatcher was closed before the work could be queued."""

    def __init__(self) -> None:
        super().__init__("The dispatcher is closed; make another one.")


class InvalidIds(CallerError):
    """A sequence of token ids that cannot be decoded."""


class TooBusy(OverloadError):
    """Admission refused: too many requests or bytes in flight, or the service drains."""

    def __init__(self, message: str, reason: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class DeadlineExceeded(OverloadError):
    """The deadline of the request passed before its answer was ready."""


class Cancelled(SidetokError):
    """The client went away; nobody reads the answer."""


class EngineFault(InternalError):
    """An engine failed on a request that was fine."""
