"""Safe cuts of BPE over characters, against the reference."""

from __future__ import annotations

import random

import pytest

from gpu_core.bridge_cut import cuts_of
from gpu_core.character_bpe import BLANK
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.safe_cut import SafeCuts
from tests.gpu_core.bridge_files import LITERALS
from tests.gpu_core.test_bridge import bench, tables_of
from tests.gpu_core.texts import random_text


def test_both_parts_have_the_ids_of_the_whole() -> None:
    """At every cut of random texts with added tokens, whole and cut off, and runs of them."""
    rng = random.Random(4)
    b, cuts = bench("ours"), cuts_of(bench("ours").spec, tables_of("ours"))
    n_cuts = 0
    for _ in range(60):
        text = random_text(rng, [*LITERALS, BLANK, "the cat", "\n\n\n\n\n", BLANK * 6], 120).encode()
        whole = b.expected(text.decode())[0]
        for high in range(1, len(text)):
            cut = cuts.last_before(text, 0, high)
            if cut is not None:
                left, right = (b.expected(part.decode())[0] for part in (text[:cut], text[cut:]))
                assert left + right == whole, (text, cut)
                n_cuts += cut == high
    assert n_cuts > 500


@pytest.mark.parametrize("text", ["\n" * 40, BLANK * 40, "ab" * 20, "<end>"])
def test_no_cut(text: str) -> None:
    """Inside a run of added tokens, a component, an added token."""
    cuts = cuts_of(bench("ours").spec, tables_of("ours"))
    data = text.encode()
    assert cuts.last_before(data, 0, len(data) - 1) is None


def test_cuts_of_an_unknown_family_are_refused() -> None:
    """What is safe for bytes is not for characters."""
    with pytest.raises(UnsupportedTokenizer, match="no safe cuts"):
        SafeCuts("sentencepiece", [], normalizes=True)
