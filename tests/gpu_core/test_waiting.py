"""Waiting, with a clock that only moves when somebody polls, sleeps or looks at it."""

import random

import pytest

from gpu_core.errors import DeviceFault
from gpu_core.waiting import (
    MIN_SLEEP_NS,
    TIMEOUT_NS,
    AdaptiveWait,
    Prediction,
    SpinWait,
    Waited,
    poll_until,
    sharpen_sleep,
)

POLL_NS = 100


class World:
    """A simulated device and clock. `late_ns` is how late a sleep ends."""

    def __init__(self, late_ns: int = 5_000) -> None:
        self.now = 1_000_000
        self.done_at = 0
        self.late_ns = late_ns
        self.n_polls = 0
        self.slept: list[float] = []
        self.asked_alive = 0
        self.dead = False

    def clock(self) -> int:
        """Time in ns."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Ends late."""
        self.slept.append(seconds)
        self.now += round(seconds * 1e9) + self.late_ns

    def poll(self, n_times: int) -> bool:
        """Each look takes time."""
        for _ in range(n_times):
            self.n_polls += 1
            self.now += POLL_NS
            if self.done_at <= self.now:
                return True
        return False

    def alive(self) -> None:
        """Whether the device still works."""
        self.asked_alive += 1
        if self.dead:
            raise DeviceFault("dead")

    def run(self, waiter: AdaptiveWait | SpinWait, n_bytes: int, took_ns: int) -> Waited:
        """One launch of a replay that takes so long, and the wait for it."""
        launched = self.now
        self.done_at = launched + took_ns
        self.now += 4_000
        waited = waiter.wait(self.poll, self.alive, n_bytes, launched)
        assert self.now >= self.done_at
        assert 0 <= self.now - launched - waited.total_ns <= POLL_NS
        return waited


def test_sleeps_most_of_a_long_replay() -> None:
    """Once it has seen a few replays, it sleeps most of the time, and its result is not late."""
    world = World()
    waiter = AdaptiveWait(world.clock, world.sleep)
    for _ in range(50):
        world.run(waiter, 480_000, 100_000)
    world.n_polls = 0
    waits = [world.run(waiter, 480_000, 100_000) for _ in range(100)]
    assert sum(waited.slept_ns for waited in waits) > 0.7 * 100 * 100_000
    assert world.n_polls * POLL_NS < 0.2 * 100 * 100_000
    assert max(waited.total_ns for waited in waits) < 101_000


def test_short_replays_are_polled() -> None:
    """What is over before a sleep would pay is never slept through."""
    world = World()
    waiter = AdaptiveWait(world.clock, world.sleep)
    for _ in range(20):
        assert world.run(waiter, 1_000, MIN_SLEEP_NS).slept_ns == 0
    assert world.slept == []


def test_recovers_from_sleeping_too_long() -> None:
    """When replays become faster, the sleeps follow within a few."""
    world = World()
    waiter = AdaptiveWait(world.clock, world.sleep)
    for _ in range(20):
        world.run(waiter, 480_000, 200_000)
    lateness = [world.run(waiter, 480_000, 80_000).total_ns - 80_000 for _ in range(40)]
    assert lateness[0] > 50_000
    assert max(lateness[25:]) < 8_000


def test_late_wake_ups_are_learned() -> None:
    """A machine whose sleeps end late is asked to sleep less."""
    world = World(late_ns=60_000)
    waiter = AdaptiveWait(world.clock, world.sleep)
    waits = [world.run(waiter, 1_000_000, 300_000) for _ in range(120)]
    assert max(waited.total_ns for waited in waits[60:]) < 310_000


def test_interruptions_are_no_lateness() -> None:
    """When one sleep in ten ends a millisecond late, the others are as long as without that."""
    world = World()
    waiter = AdaptiveWait(world.clock, world.sleep)
    slept = []
    for k in range(400):
        world.late_ns = 1_000_000 if k % 10 == 0 else 5_000
        slept.append(world.run(waiter, 480_000, 100_000).slept_ns)
    usual = sorted(slept[100:])[150]
    assert usual > 80_000


def test_sleeps_again_after_a_bad_spell() -> None:
    """A machine whose sleeps ended so late that none paid is tried again, now and then, and trusted once it is well."""
    world = World(late_ns=90_000)
    waiter = AdaptiveWait(world.clock, world.sleep)
    for _ in range(100):
        world.run(waiter, 480_000, 60_000)
    assert sum(world.run(waiter, 480_000, 60_000).slept_ns > 0 for _ in range(100)) < 20
    world.late_ns = 5_000
    for _ in range(400):
        world.run(waiter, 480_000, 60_000)
    assert sum(world.run(waiter, 480_000, 60_000).slept_ns > 0 for _ in range(100)) > 90


def test_varying_replays() -> None:
    """With replays that vary by a tenth, the mean wait ends within a twentieth of the end."""
    world, rng = World(), random.Random(5)
    waiter = AdaptiveWait(world.clock, world.sleep)
    times = [rng.randrange(95_000, 105_000) for _ in range(400)]
    totals = [world.run(waiter, 480_000, took).total_ns for took in times]
    late = [total - took for total, took in zip(totals[100:], times[100:], strict=True)]
    assert sum(late) / len(late) < 5_000


def test_sizes_are_told_apart() -> None:
    """A short text is not waited for as long as a long one, and an unknown size borrows from a smaller one."""
    prediction = Prediction()
    prediction.seen(1_000, 20_000, is_bound=False)
    prediction.seen(1_000_000, 200_000, is_bound=False)
    assert prediction.of(1_001) == 20_000
    assert prediction.of(1_000_001) == 200_000
    assert prediction.of(50_000) == 20_000
    assert prediction.of(100) == 0


def test_spinning_never_sleeps() -> None:
    """A spinning wait polls from first to last."""
    world = World()
    waited = world.run(SpinWait(world.clock), 480_000, 100_000)
    assert waited.slept_ns == 0
    assert waited.total_ns < 101_000


def test_a_dead_device_is_noticed() -> None:
    """A replay that does not end makes the device be asked; its failure ends the wait."""
    world = World()
    world.dead = True
    with pytest.raises(DeviceFault, match="dead"):
        world.run(SpinWait(world.clock), 1_000, TIMEOUT_NS)
    assert world.asked_alive == 1


def test_a_device_that_never_ends_is_a_fault() -> None:
    """A device that says it is alive and never ends is given up after the timeout."""
    world = World()
    steps = iter(range(0, 10 * TIMEOUT_NS, TIMEOUT_NS // 8))
    with pytest.raises(DeviceFault, match="not finished"):
        poll_until(lambda n_times: False, world.alive, lambda: next(steps), 0.0)
    assert world.asked_alive > 1


def test_sharper_sleep() -> None:
    """The timer slack of the thread can be set on Linux."""
    assert sharpen_sleep()


def test_predictions_while_another_thread_learns() -> None:
    """Whoever launches may ask while whoever waits learns of a size that is new."""
    prediction = Prediction()

    class Bucket(int):
        """While it is compared, another thread learns."""

        def __lt__(self, other: int) -> bool:
            prediction.seen(1 << 20, 9_000, False)
            return int(self) < other

    prediction._by_bucket = {Bucket(1): 1_000.0, Bucket(2): 2_000.0}
    assert prediction.of(1 << 10) == 2_000.0
    assert prediction.of(1 << 20) == 9_000.0
