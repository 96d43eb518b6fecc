"""Short work goes the way that is kept, and whoever compares ways is told of every answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dispatcher.costs import CostKey, Line, StartValues
from dispatcher.policy import CPU, GPU, PREDICTED, SHORT_BYTES
from dispatcher.request import EncodeOptions
from dispatcher.spell import Spell
from dispatcher.ways import Ways
from tests.dispatcher.test_group_call import Calls
from tests.fakes import FakeJob
from tests.gpu_rig import KEY, GpuRig

FAST, SLOW = 1_000.0, 5_000_000.0


class Always(Ways):
    """One way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.spell = Spell(way, 0, 0, 1 << 62)

    def now(self, now_ns: int, n_documents: int = 1) -> str:
        """Always the same."""
        self.spell.n_asked += n_documents
        return self.spell.way


@contextmanager
def rig_of(way: str, faster: str = CPU) -> Iterator[tuple[GpuRig, Spell]]:
    """A dispatcher where short work goes one way, while one route is predicted to be faster."""
    rig = GpuRig(policy="adaptive")
    rig.gpus.start()
    ways = rig.dispatcher._router.chooser.ways = Always(way)
    for route in (CPU, GPU):
        line = Line(FAST if route == faster else SLOW, 0.0)
        rig.gpus.costs.begin(CostKey(route, KEY, "ascii"), StartValues(line, line))
    yield rig, ways.spell
    rig.close()


def submit(rig: GpuRig, n: int) -> list[FakeJob]:
    """Short documents, answered."""
    jobs = [rig.submit(f"number {number}") for number in range(n)]
    rig.finish(*jobs)
    return jobs


@pytest.mark.parametrize(
    ("way", "faster", "route"), [(CPU, GPU, CPU), (GPU, CPU, GPU), (PREDICTED, GPU, GPU), (PREDICTED, CPU, CPU)]
)
def test_short_work_goes_the_way_that_is_kept(way: str, faster: str, route: str) -> None:
    """Whatever is predicted for each piece. Each is counted as a decision, and each answer is told."""
    with rig_of(way, faster) as (rig, spell):
        jobs = submit(rig, 20)
        assert {job.route for job in jobs} == {route}
        assert spell.n_asked == spell.n_answered == len(spell.answers) == 20
        assert min(spell.answers) > 0
        reasons = {reason for (_, reason), n in rig.dispatcher.decisions().items() if n}
        assert reasons == ({"faster"} if way == PREDICTED else {"together"})


@pytest.mark.parametrize("way", [CPU, GPU])
def test_what_is_not_compared(way: str) -> None:
    """Long documents go where they are predicted to be faster; a route that is asked for, or the only one, is taken."""
    other = GPU if way == CPU else CPU
    with rig_of(way, faster=other) as (rig, spell):
        long = rig.submit("x" * (SHORT_BYTES + 1))
        asked = rig.submit("abc", route=other)
        offsets = rig.submit("abc", options=EncodeOptions(char_offsets=True))
        rig.finish(long, asked, offsets)
        assert (long.route, asked.route, offsets.route) == (other, other, CPU)
        assert spell.n_answered == 0


def test_nothing_is_compared_without_a_gpu_that_is_ready() -> None:
    """Everything takes the CPU route, which says nothing of any way."""
    with rig_of(GPU) as (rig, spell):
        submit(rig, 1)
        engine = rig.gpus.engines[0]
        assert engine is not None
        engine.lose()
        while not rig.gpus.is_down():
            rig.loop.run_ready()
        assert {job.route for job in submit(rig, 5)} == {CPU}
        assert spell.n_answered == 1


def test_jobs_that_fail_do_not_count() -> None:
    """Their answers take no encoding."""
    with rig_of(CPU) as (rig, spell):
        rig.tokenizer.errors["bad"] = ValueError()
        job = rig.submit("bad")
        rig.finish(job)
        assert job.error is not None
        assert spell.n_answered == 0


@pytest.mark.parametrize("way", [CPU, GPU])
def test_groups_in_process(way: str) -> None:
    """They go the same way, and are told of."""
    with rig_of(way, faster=GPU if way == CPU else CPU) as (rig, spell):
        calls = Calls(rig)
        for _ in range(5):
            calls.start("abc", "d")
            assert calls.result().route == way
        assert spell.n_answered == 5
        assert spell.n_asked == 10
