"""One table from exceptions to HTTP answers. Every class that sidetok raises has a row (tested)."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher import errors as dispatch
from dispatcher.calibration import ProbeFailed
from dispatcher.gpu.link import EngineLost
from dispatcher.gpu.messages import BadMessage
from gpu_core import errors as core


class UnknownModel(core.CallerError):
    """The request names a model that is not served."""


class InvalidBody(core.CallerError):
    """A body that is not of the codec it claims to be, or lacks a field; `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidField(core.CallerError):
    """A field of a body that was read well has a value that cannot be served; `param` names it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedMediaType(core.CallerError):
    """A content type that this endpoint does not read."""


class BodyTooLarge(core.CallerError):
    """The body is over the limit."""


class ChatTemplateError(core.CallerError):
    """The chat template refused the conversation, or may not be used."""


class Conflict(core.CallerError):
    """What is asked for does not fit what is there: a name that is taken, a model that must stay."""


class ModelFailed(core.InternalError):
    """The model is known, but its files could not be loaded; only a restart with better ones helps."""


class ModelNotReady(core.OverloadError):
    """The model is known, but not loaded and proven yet."""


class Status(NamedTuple):
    """HTTP status, the `type` of the error object, and the outcome label in metrics."""

    code: int
    type: str
    outcome: str


TABLE: dict[type[core.SidetokError], Status] = {
    UnknownModel: Status(404, "NotFoundError", "bad_request"),
    Conflict: Status(409, "ConflictError", "bad_request"),
    UnsupportedMediaType: Status(415, "BadRequestError", "bad_request"),
    BodyTooLarge: Status(413, "BadRequestError", "bad_request"),
    InvalidBody: Status(400, "BadRequestError", "bad_request"),
    InvalidField: Status(400, "BadRequestError", "bad_request"),
    ChatTemplateError: Status(400, "BadRequestError", "bad_request"),
    ModelFailed: Status(500, "InternalServerError", "error"),
    ModelNotReady: Status(503, "ServiceUnavailableError", "unavailable"),
    dispatch.InvalidText: Status(400, "BadRequestError", "bad_request"),
    dispatch.InvalidOption: Status(400, "BadRequestError", "bad_request"),
    dispatch.InvalidIds: Status(400, "BadRequestError", "bad_request"),
    dispatch.TextTooLarge: Status(413, "BadRequestError", "bad_request"),
    dispatch.NoGpuRoute: Status(503, "ServiceUnavailableError", "unavailable"),
    dispatch.ModelAway: Status(503, "ServiceUnavailableError", "unavailable"),
    dispatch.DispatcherClosed: Status(503, "ServiceUnavailableError", "unavailable"),
    dispatch.TooBusy: Status(429, "RateLimitError", "shed"),
    dispatch.DeadlineExceeded: Status(504, "TimeoutError", "deadline"),
    dispatch.Cancelled: Status(499, "ClientClosedRequest", "cancelled"),
    dispatch.EngineFault: Status(500, "InternalServerError", "error"),
    BadMessage: Status(500, "InternalServerError", "error"),
    ProbeFailed: Status(500, "InternalServerError", "error"),
    EngineLost: Status(500, "InternalServerError", "error"),
    core.TokenizerFileError: Status(400, "BadRequestError", "bad_request"),
    core.UnsupportedTokenizer: Status(501, "NotImplementedError", "bad_request"),
    core.NoFreeContext: Status(503, "ServiceUnavailableError", "unavailable"),
    core.DeviceFault: Status(500, "InternalServerError", "error"),
    core.DeviceUnavailable: Status(500, "InternalServerError", "error"),
    core.CallerError: Status(400, "BadRequestError", "bad_request"),
    core.OverloadError: Status(503, "ServiceUnavailableError", "unavailable"),
    core.InternalError: Status(500, "InternalServerError", "error"),
    core.SidetokError: Status(500, "InternalServerError", "error"),
}


def status_of(error: BaseException) -> Status:
    """The row of the most specific class in the table; anything foreign is our fault."""
    for cls in type(error).__mro__:
        if (row := TABLE.get(cls)) is not None:
            return row
    return TABLE[core.InternalError]
