"""How a job ends with an error: named, worded by its endpoint, without a text of a document."""

from __future__ import annotations

import logging
from typing import Any

from dispatcher.errors import EngineFault
from dispatcher.job import Job
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.worker")


def fail(job: Job[Any], error: BaseException) -> None:
    """Let a job end with this error."""
    job.error = named(error, job)
    job.answer = failed(job, job.error)
    # Its frames and its cause hold the body, and the job would hold them until the garbage collector comes by.
    job.error.__traceback__ = job.error.__cause__ = job.error.__context__ = None


def failed(job: Job[Any], error: SidetokError) -> Any:
    """The answer that tells of an error; None when even that cannot be written."""
    try:
        return job.fail(error)
    except BaseException as second:
        log.error("an error could not be answered", extra={"error": type(second).__name__, "where": where(second)})
        return None


def named(error: BaseException, job: Job[Any]) -> SidetokError:
    """Errors that are not ours become `EngineFault`; their text stays out, since it may quote the document."""
    if isinstance(error, SidetokError):
        return error
    log.error("request failed", extra={"model": job.model, "error": type(error).__name__, "where": where(error)})
    return EngineFault("An internal error occurred; the request was not at fault. See the server's log.")


def where(error: BaseException) -> str:
    """The innermost frame of a traceback, as file:line; no values."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else "unknown"
