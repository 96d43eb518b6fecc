"""The finisher: ids of any engine become the same result."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dispatcher.errors import InvalidOption
from dispatcher.finisher import Finisher
from dispatcher.request import EncodeOptions
from dispatcher.special_tokens import SpecialTokens
from dispatcher.tokenizer import Tokenizer


def packed(*ids: int) -> bytes:
    """Packed ids."""
    return np.array(ids, "<u4").tobytes()


SPECIAL = SpecialTokens(packed(100), packed(101, 102))


def test_ids_become_the_tokenizers_own_result(embedded: Tokenizer) -> None:
    """Bare ids that are finished are what `encode` gives, for all options; also from memory of somebody else."""
    text = "The quick brown fox, 12345 times."
    (bare,) = embedded.encode([text], EncodeOptions(add_special_tokens=False))
    sides = ("left", "right")
    for special, room, side, count in itertools.product((True, False), (None, 1, 3, 99), sides, (True, False)):
        options = EncodeOptions(special, room, side, count_only=count)  # type: ignore[arg-type]
        finisher = embedded.finisher(options)
        assert finisher is not None
        assert [finisher.finish(bare.ids)] == embedded.encode([text], options)
        assert [finisher.finish_view(memoryview(bytearray(bare.ids)), bare.n_tokens)] == embedded.encode(
            [text], options
        )


def test_special_tokens_stand_around_what_is_left() -> None:
    """Truncation leaves room for special tokens and cuts the side that was named."""
    ids = packed(1, 2, 3, 4)
    assert Finisher(SPECIAL, EncodeOptions()).finish(ids).ids == packed(100, 1, 2, 3, 4, 101, 102)
    cut = Finisher(SPECIAL, EncodeOptions(max_tokens=5)).finish(ids)
    assert (cut.ids, cut.n_tokens, cut.truncated) == (packed(100, 1, 2, 101, 102), 5, True)
    left = Finisher(SPECIAL, EncodeOptions(max_tokens=4, truncation_side="left")).finish(ids)
    assert left.ids == packed(100, 4, 101, 102)
    none = Finisher(SPECIAL, EncodeOptions(max_tokens=3, truncation_side="left")).finish(ids)
    assert (none.ids, none.truncated) == (packed(100, 101, 102), True)
    with pytest.raises(InvalidOption, match="3 special tokens"):
        Finisher(SPECIAL, EncodeOptions(max_tokens=2))


def test_a_count_needs_no_ids() -> None:
    """A count is finished from the number alone."""
    finisher = Finisher(SPECIAL, EncodeOptions(count_only=True, max_tokens=6))
    for n_tokens, expected, truncated in ((2, 5, False), (3, 6, False), (4, 6, True)):
        result = finisher.finish_view(b"", n_tokens)
        assert (result.ids, result.n_tokens, result.truncated) == (b"", expected, truncated)


def test_who_has_no_finisher(embedded: Tokenizer) -> None:
    """What only the reference can tell is never put together from ids."""
    for name in ("char_offsets", "byte_offsets", "token_strings", "special_tokens_mask"):
        assert embedded.finisher(EncodeOptions(**{name: True})) is None  # type: ignore[arg-type]
    assert Finisher(SpecialTokens(), EncodeOptions()).changes_nothing
    assert not Finisher(SPECIAL, EncodeOptions()).changes_nothing
    assert Finisher(SPECIAL, EncodeOptions(add_special_tokens=False)).changes_nothing
