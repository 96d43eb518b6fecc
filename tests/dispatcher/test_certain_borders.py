"""Certain borders: no merge goes over them, whatever the rules and whatever stands around."""

from __future__ import annotations

import json
import random
import string
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from dispatcher.engines.certain_borders import MARGIN, NARROW, STEP, WIDE, CertainBorders
from tests.data import EMBEDDED, tokenizer_json

LETTERS = string.ascii_lowercase.encode()


def random_rules(rng: random.Random, alphabet: str, n: int) -> list[tuple[str, str]]:
    """Rules of tokens that exist, in no particular order, some of them twice."""
    tokens, rules = list(alphabet), []
    for _ in range(n):
        left, right = rng.choice(tokens), rng.choice(tokens)
        rules.append((left, right))
        tokens.append(left + right)
    rng.shuffle(rules)
    return rules + rules[:2]


def borders_of(text: str, rules: list[tuple[str, str]]) -> set[int]:
    """Where tokens begin and end: the first pair of the lowest rank is merged, over and over."""
    ranks = {pair: rank for rank, pair in enumerate(rules)}
    tokens = list(text)
    while True:
        pairs = list(pairwise(tokens))
        rank, place = min(((ranks[pair], i) for i, pair in enumerate(pairs) if pair in ranks), default=(-1, -1))
        if rank < 0:
            break
        tokens[place : place + 2] = ["".join(pairs[place])]
    return {sum(map(len, tokens[:i])) for i in range(len(tokens))}


@pytest.mark.parametrize("alphabet", ["ab", "abcdef"])
@pytest.mark.parametrize("pairs_as_strings", [False, True])
def test_no_merge_goes_over_them(alphabet: str, pairs_as_strings: bool) -> None:
    """Models of random rules, against merging by the definition."""
    rng = random.Random(f"{alphabet} {pairs_as_strings}")
    n_found = 0
    for _ in range(60):
        rules = random_rules(rng, alphabet, rng.choice([2, 5, 12, 30]))
        merges = [" ".join(rule) if pairs_as_strings else list(rule) for rule in rules]
        text = "".join(rng.choices(alphabet, k=400))
        found = CertainBorders(merges, [alphabet.encode()]).find(text.encode())
        assert set(found) <= borders_of(text, rules)
        n_found += len(found)
    assert n_found > 60


def test_they_are_borders_of_a_real_model() -> None:
    """Random letters, random words of few letters, signs; borders are as far apart as promised."""
    data = tokenizer_json(EMBEDDED)
    tokenizer = Tokenizer.from_buffer(data)
    merges = json.loads(data)["model"]["merges"]
    rng = random.Random(5)
    for window in (NARROW, WIDE):
        borders = CertainBorders(merges, [LETTERS, string.punctuation.encode()], window)
        for alphabet in (string.ascii_lowercase, "etaoinshr", "qxjz", "the", "=-", "+-*/=<>"):
            text = "".join(rng.choices(alphabet, k=8000))
            found = borders.find(text.encode())
            begins = {begin for begin, _ in tokenizer.encode(text, add_special_tokens=False).offsets}
            assert set(found) <= begins, alphabet
            assert all(b - a > STEP - window for a, b in pairwise(found))
        assert len(borders.find(bytes(rng.choices(LETTERS, k=8000)))) > 8000 // STEP * 0.9


def test_only_inside_runs_of_one_kind() -> None:
    """Not near the ends of a run, not in short text, not where nothing is known."""
    borders = CertainBorders(["a b"], [LETTERS, b"+-"])
    assert borders.find(b"") == borders.find(b"x" * (WIDE + 2 * MARGIN - 1)) == []
    run = b"x" * 1000
    found = borders.find(b" " + run + b"-" * 1000 + "é".encode() * 500)
    assert found
    for place in found:
        begin = 1 if place < 1001 else 1001
        assert begin + MARGIN <= place <= begin + 1000 - MARGIN
    assert borders.find(b"x-" * 1000) == borders.find(b"X" * 1000) == borders.find(b"\n" * 1000) == []


def test_none_in_one_letter_that_merges() -> None:
    """Where tokens of one letter lie depends on where the run begins."""
    assert CertainBorders(["a a", "aa aa"], [LETTERS]).find(b"a" * 1000) == []
