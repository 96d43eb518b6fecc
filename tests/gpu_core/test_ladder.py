"""Choice of a size class, and batches that fit none."""

import random

import pytest

from gpu_core.ladder import Ladder, Piece, Plan, SizeClass, size_classes, within_budget
from gpu_core.options import GpuOptions

LADDER = Ladder([SizeClass(100, 8), SizeClass(10, 4)])


def never(document: int, low: int, high: int) -> int | None:
    """No document can be cut."""
    return None


def anywhere(document: int, low: int, high: int) -> int | None:
    """Every byte is a safe cut."""
    return high


@pytest.mark.parametrize(
    ("n_bytes", "n_documents", "index"),
    [(0, 0, 0), (10, 4, 0), (11, 1, 1), (10, 5, 1), (100, 8, 1), (101, 1, 2), (1, 9, 2)],
)
def test_smallest_fitting_class(n_bytes: int, n_documents: int, index: int) -> None:
    """The smallest class with room for the bytes and for the documents is taken."""
    assert LADDER.fitting(n_bytes, n_documents) == index


def test_top_class_is_the_largest() -> None:
    """Classes are sorted whatever their order was."""
    assert LADDER.top == SizeClass(100, 8)


def test_a_ladder_is_never_empty() -> None:
    """There is no encoder without a size class."""
    with pytest.raises(ValueError, match="size class"):
        Ladder([])


def check(plan: Plan, lengths: list[int], top: SizeClass) -> None:
    """Every byte of every document is in one piece, in order, and every part fits."""
    position = dict.fromkeys(range(len(lengths)), 0)
    order = [piece.document for part in plan.parts for piece in part.pieces]
    assert order == sorted(order)
    for part in plan.parts:
        assert part.n_bytes <= top.capacity
        assert 0 < len(part.pieces) <= top.max_documents
        for piece in part.pieces:
            assert piece.start == position[piece.document]
            position[piece.document] = piece.end
    for document, length in enumerate(lengths):
        assert position[document] == (0 if document in plan.uncut else length)


def test_whole_documents_stay_whole() -> None:
    """A document that fits a class is not cut, even if its part has room for half of it."""
    plan = LADDER.plan([60, 60, 40], anywhere)
    assert [part.pieces for part in plan.parts] == [
        (Piece(0, 0, 60),),
        (Piece(1, 0, 60), Piece(2, 0, 40)),
    ]


def test_long_documents_are_cut() -> None:
    """A document beyond the top class is cut into pieces that fit; what is left shares a part with the next one."""
    plan = LADDER.plan([250, 30], anywhere)
    assert [part.n_bytes for part in plan.parts] == [100, 100, 80]
    assert plan.uncut == ()


def test_what_cannot_be_cut_is_named() -> None:
    """A long document without a cut goes to the CPU as a whole, the others stay."""
    plan = LADDER.plan([5, 250, 7], never)
    assert plan.uncut == (1,)
    assert [piece.document for part in plan.parts for piece in part.pieces] == [0, 2]


def test_many_documents() -> None:
    """The number of documents closes a part, too; empty documents count."""
    plan = LADDER.plan([0] * 17, never)
    assert [len(part.pieces) for part in plan.parts] == [8, 8, 1]


def test_random_batches() -> None:
    """Any batch is covered exactly once, whatever the cuts are."""
    rng = random.Random(3)
    for _ in range(300):
        lengths = [rng.choice((0, 1, 5, 50, 99, 100, 101, 260)) for _ in range(rng.randrange(20))]
        stubborn = rng.random()

        def cut(document: int, low: int, high: int, stubborn: float = stubborn) -> int | None:
            return None if rng.random() < stubborn / 4 else rng.randint(max(low + 1, high - 9), high)

        check(LADDER.plan(lengths, cut), lengths, LADDER.top)


def test_classes_of_the_options() -> None:
    """A class has room for a document in 8 bytes, for 64 at least, and for no more than the options say."""
    classes = size_classes(GpuOptions(size_classes_bytes=(100, 4096, 1 << 20), max_documents=1000))
    assert classes == (SizeClass(100, 64), SizeClass(4096, 512), SizeClass(1 << 20, 1000))


def test_memory_budget() -> None:
    """The largest classes are given up first; the smallest one always stays."""
    options = GpuOptions(size_classes_bytes=(4096, 65536, 1 << 20))
    classes = size_classes(options)
    sizes = [size.device_bytes(False) * options.contexts_per_class for size in classes]
    assert within_budget(classes, options) == classes
    for budget, n_kept in ((1, 1), (sizes[0] + sizes[1], 2), (sum(sizes) - 1, 2), (sum(sizes), 3)):
        limited = GpuOptions(size_classes_bytes=options.size_classes_bytes, memory_budget_bytes=budget)
        assert within_budget(classes, limited) == classes[:n_kept]
