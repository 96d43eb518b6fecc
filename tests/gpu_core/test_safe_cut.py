"""Safe cuts, against the reference's pre-tokenizers."""

import random

import pytest

from gpu_core.classes import FAMILY_CLASSES
from gpu_core.safe_cut import SEARCH_BYTES, SafeCuts
from tests.gpu_core.patterns import pre_tokenizer

CHARS = [
    "a",
    "é",
    "ſ",
    "s",
    "d",
    "'",
    "1",
    "٣",
    "!",
    "。",
    "(",
    " ",
    "\u3000",
    "\t",
    "\n",
    "\r",
    "中",
    "の",
    "😀",
    "\0",
    "́",
]


@pytest.mark.parametrize("family", FAMILY_CLASSES)
def test_pieces_on_both_sides_stay_the_same(family: str) -> None:
    """Splitting both sides of a cut gives what splitting the whole gives, for random strings of every class."""
    reference, rng = pre_tokenizer(family), random.Random(f"cuts {family}")
    cuts = SafeCuts(family, [], normalizes=False)

    def split(text: str) -> list[str]:
        return [piece for piece, _offsets in reference.pre_tokenize_str(text)] if text else []

    n_cuts = 0
    for _ in range(3000):
        text = "".join(rng.choices(CHARS, k=rng.randrange(2, 12)))
        data = text.encode()
        cut = cuts.last_before(data, 0, rng.randint(1, len(data)))
        if cut is not None:
            n_cuts += 1
            assert split(text) == split(data[:cut].decode()) + split(data[cut:].decode())
    assert n_cuts > 1000


def test_cut_is_the_last_one_within_the_limit() -> None:
    """The cut lies in low < cut <= high, and it is the last that is safe."""
    cuts = SafeCuts("cl100k", [], normalizes=False)
    assert cuts.last_before(b"one two three", 0, 9) == 7
    assert cuts.last_before(b"one two three", 0, 7) == 7
    assert cuts.last_before(b"one two three", 3, 6) is None
    assert cuts.last_before(b"one two three", 0, 13) == 7
    assert cuts.last_before(memoryview(b"one two three"), 0, 6) == 3


def test_added_tokens_are_not_cut() -> None:
    """No cut lies inside an added token, even where its bytes would allow one."""
    cuts = SafeCuts("cl100k", [b"<end of turn>"], normalizes=False)
    text = b"some words <end of turn> more"
    inside = range(text.index(b"<") + 1, text.index(b">") + 1)
    found = {cuts.last_before(text, 0, high) for high in range(1, len(text))}
    assert found.isdisjoint(inside)
    assert SafeCuts("cl100k", [], normalizes=False).last_before(text, 0, 20) in inside


def test_characters_that_compose_are_not_parted() -> None:
    """Under NFC a cut never stands before a mark, or before another character that normalization may join."""
    text = "한국어\u0301".encode()
    assert SafeCuts("qwen2", [], normalizes=False).last_before(text, 0, len(text) - 1) == 9
    assert SafeCuts("qwen2", [], normalizes=True).last_before(text, 0, len(text) - 1) is None


def test_text_without_a_cut() -> None:
    """One long word, and bytes that are not UTF-8, have no cut."""
    cuts = SafeCuts("gpt2", [], normalizes=False)
    assert cuts.last_before(b"a" * (2 * SEARCH_BYTES), 0, 2 * SEARCH_BYTES - 9) is None
    assert cuts.last_before(b"\xe4\xb8 \xff\xff" * 50, 0, 200) is None


def test_search_is_bounded() -> None:
    """A cut farther away than the search goes is not found."""
    cuts = SafeCuts("gpt2", [], normalizes=False)
    text = b"word " + b"a" * (SEARCH_BYTES + 10)
    assert cuts.last_before(text, 0, SEARCH_BYTES) == 4
    assert cuts.last_before(text, 0, SEARCH_BYTES + 9) is None


def test_cjk_text_is_cut_at_its_punctuation() -> None:
    """Text without ASCII has cuts, too."""
    text = "你好世界。再见世界。再见".encode()
    cut = SafeCuts("cl100k", [], normalizes=True).last_before(text, 0, 20)
    assert cut == len("你好世界".encode())
