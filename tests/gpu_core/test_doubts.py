"""Which texts go into normal form at once."""

from gpu_core.doubts import EXPLORED, Doubts
from gpu_core.layout import MAX_CAPACITY


def test_after_some_that_were_not_in_normal_form() -> None:
    """Sizes by themselves; the largest text has a place, too."""
    doubts = Doubts()
    for n in range(1, 5):
        assert not doubts.are_likely(1000)
        doubts.seen(1000, True)
        doubts.seen(MAX_CAPACITY, True)
        assert n < 4 or doubts.are_likely(1000)
    assert doubts.are_likely(MAX_CAPACITY)
    assert not doubts.are_likely(100)
    assert not doubts.are_likely(0)


def test_every_now_and_then_one_goes_the_other_way() -> None:
    """That is how it is noticed that they are in normal form again: two of them are enough."""
    doubts = Doubts()
    for _ in range(20):
        doubts.seen(1000, True)
    asked = [doubts.are_likely(1000) for _ in range(5 * EXPLORED)]
    assert asked.count(False) == 5
    doubts.seen(1000, False)
    assert doubts.are_likely(1000)
    doubts.seen(1000, False)
    assert not doubts.are_likely(1000)


def test_sizes_that_take_turns() -> None:
    """Of each size some go the other way, in whatever order they come."""
    doubts = Doubts()
    for _ in range(20):
        doubts.seen(1000, True)
        doubts.seen(100_000, True)
    asked = [(doubts.are_likely(1000), doubts.are_likely(100_000)) for _ in range(2 * EXPLORED)]
    assert [sum(not likely for likely in of_size) for of_size in zip(*asked, strict=True)] == [2, 2]


def test_a_few_among_many_change_nothing() -> None:
    """One in three is not often."""
    doubts = Doubts()
    for n in range(300):
        assert not doubts.are_likely(1000)
        doubts.seen(1000, n % 3 == 0)
