"""The plain twin of the split stage cuts exactly where the reference does."""

import itertools
import os
import random

import numpy as np
import pytest

from gpu_core.tables import FAMILIES
from gpu_core.twin_split import classify, split
from tests.gpu_core.patterns import pre_tokenizer, reference_starts

REPRESENTATIVES = "asſ'1 \t\n!\u3000²中\u0301\x01ー€"
"""One character, or more, of each class of each family; of one to three bytes."""
FULL = os.environ.get("SIDETOK_TEST_FULL") == "1"


def twin_starts(text: str, family: str) -> set[int]:
    """Start positions as the twin sees them."""
    data = text.encode()
    border = np.zeros(len(data), dtype=bool)
    border[0] = True
    return set(np.flatnonzero(split(classify(data, family), border, family)).tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_short_string_of_representatives(family: str) -> None:
    """Exhaustively: all strings of up to 3 characters (4 in the full run)."""
    reference = pre_tokenizer(family)
    for length in range(1, 5 if FULL else 4):
        for chars in itertools.product(REPRESENTATIVES, repeat=length):
            text = "".join(chars)
            assert twin_starts(text, family) == reference_starts(reference, text), repr(text)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_strings(family: str) -> None:
    """Longer strings with more of what contractions, digits and white space are made of."""
    reference, rng = pre_tokenizer(family), random.Random(11)
    pool = REPRESENTATIVES + "'''   \n\n\r\nrevelmTSRE12ab\U0001f600é\u0c95"
    for _ in range(60_000 if FULL else 2_500):
        text = "".join(rng.choices(pool, k=rng.randint(4, 16)))
        assert twin_starts(text, family) == reference_starts(reference, text), repr(text)


def test_nothing_is_seen_across_a_border() -> None:
    """Two documents side by side split like each alone."""
    rng = random.Random(12)
    for family in FAMILIES:
        for _ in range(300):
            parts = ["".join(rng.choices(REPRESENTATIVES, k=rng.randint(1, 5))) for _ in range(2)]
            data = "".join(parts).encode()
            first = len(parts[0].encode())
            border = np.zeros(len(data), dtype=bool)
            border[[0, first]] = True
            found = set(np.flatnonzero(split(classify(data, family), border, family)).tolist())
            assert found == twin_starts(parts[0], family) | {first + at for at in twin_starts(parts[1], family)}
