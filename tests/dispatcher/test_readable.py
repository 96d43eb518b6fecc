"""Waiting for a descriptor, as long as was asked for and no millisecond longer."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

import pytest

from dispatcher.gpu.readable import wait_readable

HIGH_FD = 1100


@pytest.fixture(params=["low", "high"])
def pipe(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A pipe; the number of its end to read is one that `select` takes, or none."""
    end, other = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if request.param == "high":
        if 0 <= hard <= HIGH_FD:
            pytest.skip("this process may not have so many descriptors")
        # Without a limit it is -1.
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, HIGH_FD + 1) if soft >= 0 else soft, hard))
        end, low = os.dup2(end, HIGH_FD), end
        os.close(low)
    yield end, other
    os.close(end)
    os.close(other)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_can_be_read_is_said_at_once(pipe: tuple[int, int]) -> None:
    """Without a wait, and also with one that is negative."""
    end, other = pipe
    assert not wait_readable(end, 0.0)
    assert not wait_readable(end, -1.0)
    os.write(other, b"x")
    assert wait_readable(end, 0.0)
    assert wait_readable(end, 60.0)


def test_waits_do_not_end_before_their_time(pipe: tuple[int, int]) -> None:
    """Of a high descriptor by a fraction of a millisecond, which is not waited for at once."""
    begin_s = time.monotonic()
    assert not wait_readable(pipe[0], 0.0101)
    assert time.monotonic() - begin_s >= 0.01
