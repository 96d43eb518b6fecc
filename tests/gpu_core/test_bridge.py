"""SentencePiece-style BPE on the host: bridge cuts, runs of added tokens, bytes of unknown characters, tables."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dispatcher.proof_cases import real_text
from gpu_core import cuckoo
from gpu_core.bpe_file import read_rules
from gpu_core.bridge_tables import NO_SYMBOL, Joins, closed_strings
from gpu_core.character_bpe import BLANK, CharacterBpe, read_character_bpe
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.run_literals import RunLiteral, overlap_free, split_literals
from gpu_core.spec import TokenizerSpec, read_spec
from gpu_core.tables import Tables, build_tables, check_support
from gpu_core.twin import longest_matches
from gpu_core.twin_bridge import BridgeTwin
from tests.data import FULL, SHARED, adversarial, corpus_windows
from tests.gpu_core.bridge_files import file_of, sentencepiece
from tests.gpu_core.texts import random_text

N_SAMPLES = 10**6 if FULL else 150
NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class Bench:
    """One tokenizer: file, model, twin without a limit, and the reference."""

    spec: TokenizerSpec
    model: CharacterBpe
    twin: BridgeTwin
    reference: Tokenizer

    def differing(self, texts: list[str], twin: BridgeTwin | None = None) -> list[str]:
        """The texts whose ids or first characters of tokens differ from the reference's."""
        return [text for text in texts if self.answer(text, twin or self.twin) != self.expected(text)]

    def answer(self, text: str, twin: BridgeTwin) -> tuple[list[int], list[int]]:
        """Ids, and the character that holds each token's first byte."""
        result = twin.encode(text.encode())
        assert not result.needs_cpu
        character = np.cumsum((np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80) - 1
        return result.ids, character[result.token_starts].tolist()

    def expected(self, text: str) -> tuple[list[int], list[int]]:
        """What is exact."""
        encoding = self.reference.encode(text, add_special_tokens=False)
        return encoding.ids, [begin for begin, _end in encoding.offsets]


@cache
def bench(family: str) -> Bench:
    """Made once for all tests."""
    data = file_of(family)
    spec = read_spec(data)
    model = read_character_bpe(data, spec)
    twin = BridgeTwin(model, *split_literals(spec), max_bytes=NO_LIMIT)
    return Bench(spec, model, twin, Tokenizer.from_str(data.decode()))


@cache
def tables_of(family: str) -> Tables:
    """Made once for all tests."""
    return build_tables(file_of(family), bench(family).spec)


def random_texts(family: str, n_texts: int, n_characters: int) -> list[str]:
    """Random texts with added tokens, whole and cut off, and blanks that stand in the text itself."""
    rng = random.Random(family)
    literals = [token.content for token in bench(family).spec.added_tokens] + [BLANK, "\r", "the ", "\U000e0001"]
    return [random_text(rng, literals, n_characters) for _ in range(n_texts)]


OURS = ["ours", "ours_prepending"]
REAL = [f for f in ("gemma3", "llama2") if (SHARED / "tokenizers" / f).is_dir()]


@pytest.mark.parametrize("family", [*OURS, *REAL])
def test_ids_and_starts_are_the_references(family: str) -> None:
    """Windows of text, tricky inputs, and random texts with added tokens between: the same ids at the same places."""
    windows = [sample.text for sample in corpus_windows(40 if FULL else 1, 600)]
    tricky = [sample.text for sample in adversarial()]
    random.Random(1).shuffle(tricky)
    texts = [*windows, *tricky[:N_SAMPLES], *random_texts(family, 400 if FULL else 25, 80)]
    assert bench(family).differing(texts) == []


@pytest.mark.parametrize("family", OURS)
def test_short_texts_one_by_one(family: str) -> None:
    """Every text of up to four pieces of the things that are treated specially."""
    pieces = ["a", " ", "b", BLANK, "\n", "<b>", "<b", "\r", "\u4e2d", ">"]
    texts = [""]
    for _length in range(3 + FULL):
        texts += [text + piece for text in texts[-(len(pieces) ** _length) :] for piece in pieces]
    assert bench(family).differing(texts) == []


@pytest.mark.parametrize("family", ["ours", *(REAL[:1] if FULL else [])])
def test_hashed_pairs_only_leave_out_cuts(family: str) -> None:
    """A pair that joins is never cut by the tables, within ASCII no other is kept, and the ids stay the same."""
    b, joins = bench(family), Joins(tables_of(family).arrays)
    assert all(joins(x, y) for x, y in b.model.joined_pairs)
    printable = [chr(point) for point in range(33, 127)] + [BLANK]
    assert {(x, y) for x in printable for y in printable if joins(x, y)} == {
        pair for pair in b.model.joined_pairs if set(pair) <= set(printable)
    }
    twin = BridgeTwin(b.model, *split_literals(b.spec), joins=joins, max_bytes=NO_LIMIT)
    assert b.differing(random_texts(family, 20, 80), twin) == []


@pytest.mark.parametrize("family", ["ours", *REAL[:1]])
def test_the_split_at_a_space_never_fires(family: str) -> None:
    """Without its pre-tokenizer a file gives the same ids: the normalizer has left no space."""
    reference = bench(family).reference
    texts = [*random_texts(family, 20, 80), "  a  b ", "<b> <b>"]
    with_split = [reference.encode(text).ids for text in texts]
    split, reference.pre_tokenizer = reference.pre_tokenizer, None
    without = [reference.encode(text).ids for text in texts]
    reference.pre_tokenizer = split
    assert split is not None
    assert with_split == without


def test_the_order_of_ranks_differs_from_the_order_of_products() -> None:
    """Our small file has the trap: merging in the order of product ids would give other ids."""
    b = bench("ours")
    assert (np.diff(b.model.rules.product) < 0).any()
    by_product = BridgeTwin(b.model, *split_literals(b.spec), max_bytes=NO_LIMIT)
    by_product.rules = {pair: (product, product) for pair, (_rank, product) in b.twin.rules.items()}
    assert b.differing(["the cat and the dog", *real_text()[:3]], by_product) != []


@pytest.mark.parametrize("family", [*OURS, *(["gemma3"] if FULL and REAL else []), *REAL[1:]])
def test_closed_entries_are_those_that_merging_reaches(family: str) -> None:
    """Compared with the reference's model, entry by entry."""
    b = bench(family)
    closed = closed_strings(b.model)
    model = b.reference.model
    reached = {}
    for entry, i in b.model.entries.items():
        tokens = model.tokenize(entry)
        if len(tokens) == 1 and tokens[0].id == i:
            reached[entry] = i
    assert closed == reached


def test_tables_hold_the_model() -> None:
    """Each character with its symbol, each closed entry in raw spelling, each run."""
    b, built = bench("ours"), tables_of("ours")
    pages, blocks = built.arrays["character_pages"], built.arrays["character_blocks"]
    for point in [*range(0x3000), 0x4E2D, 0x10FFFF]:
        char = BLANK if point == ord(" ") else chr(point)
        assert blocks[pages[point >> 8], point & 255] == b.model.characters.get(char, NO_SYMBOL)
    closed = {content.replace(BLANK, " ").encode() for content in closed_strings(b.model)}
    assert np.count_nonzero(built.arrays["short_slots"][:, 3]) == sum(len(content) <= 12 for content in closed)
    n_rules = len(b.model.rules.by_pair())
    assert np.count_nonzero(built.arrays["merge_slots"][:, 0] != 0xFFFFFFFF) == n_rules
    runs = {chr(c): (shortest, longest) for c, shortest, longest, _first in built.arrays["runs"].tolist()}
    assert runs == {"\n": (1, 4), BLANK: (2, 5)}
    assert built.arrays["ascii"][ord("\n")] == 1
    assert built.arrays["ascii"][BLANK.encode()[0]] == 0x40
    assert built.arrays["ascii"][ord("<")] == 0x80
    assert [built.numbers["pair_a"], built.numbers["pair_b"]] == cuckoo.factors(1)[:2]


def test_a_version_comment_is_a_string() -> None:
    """Among merges that are pairs, an entry that reads like the comment is an entry."""
    vocab = {content: i for i, content in enumerate(("a", "b", "ab", "#version", "#versiona"))}
    assert read_rules(["#version: 0.2", "a b"], vocab).product.tolist() == [2]
    assert read_rules([["#version", "a"], ["a", "b"]], vocab).product.tolist() == [4, 2]


def test_the_longest_match_ends_with_the_text() -> None:
    """What lies behind the end is no part of a match."""
    literals = {b"<a>": 1, b"<a>bcd": 2, b"b": 3}
    assert longest_matches(b"<a>bcd<a>", literals) == [(0, 6), (3, 1), (6, 3)]


def test_pieces_of_a_run() -> None:
    """The largest pieces first; what is shorter than the shortest token stays text."""
    run = RunLiteral("x", 2, (7, 8))
    assert [run.pieces(n) for n in range(8)] == [[], [], [2], [3], [3], [3, 2], [3, 3], [3, 3]]


def test_runs_are_told_from_other_literals() -> None:
    """A character that is in another literal, a gap between the lengths, or a flag: not a run."""

    def tokens(*contents: str, **flags: Any) -> list[dict[str, Any]]:
        usual = {"special": False, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
        return [{"id": n, "content": content, **usual, **flags} for n, content in enumerate(contents)]

    def runs(entries: list[dict[str, Any]]) -> list[str]:
        found, literals = split_literals(read_spec(json.dumps({**file, "added_tokens": entries}).encode()))
        assert len(literals) + sum(len(run.ids) for run in found) == len(entries)
        return [run.character for run in found]

    file = json.loads(sentencepiece(False))
    assert runs(tokens("x", "xx", "yy")) == ["x", "y"]
    assert runs(tokens("x", "xxx")) == []
    assert runs(tokens("x", "xx", "<x>")) == []
    assert runs(tokens("x", "xx", lstrip=True)) == []


@pytest.mark.parametrize(
    ("literals", "expected"),
    [(["<a>", "<ab>", "</a>"], True), (["aba"], False), (["abc", "b"], False), (["ab", "bc"], False), ([], True)],
)
def test_literals_that_can_share_a_byte(literals: list[str], expected: bool) -> None:
    """A suffix that begins another one, or one inside another."""
    assert overlap_free({literal.encode(): 0 for literal in literals}) is expected


@pytest.mark.parametrize(
    ("text", "needs_cpu"), [(b"\xff", True), (b"ab" * 256, False), (b"ab" * 257, True), (b"a\rb" * 400, False)]
)
def test_what_a_kernel_would_leave_to_the_cpu(text: bytes, needs_cpu: bool) -> None:
    """Text that is not UTF-8, and components beyond the limit."""
    b = bench("ours")
    twin = BridgeTwin(b.model, *split_literals(b.spec))
    assert twin.encode(text).needs_cpu is needs_cpu


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"ignore_merges": True}}, "lookup of the whole text"),
        ({"model": {"byte_fallback": False}}, "no bytes"),
        ({"model": {"dropout": 0.5}}, "dropout"),
        ({"model": {"end_of_word_suffix": "@"}}, "prefix or suffix"),
        ({"normalizer": None}, "normalizer"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "one word"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Files that these rules do not describe, with the reason."""
    file = json.loads(sentencepiece(False))
    for name, value in changes.items():
        file[name] = {**file[name], **value} if name == "model" else value
    data = json.dumps(file).encode()
    with pytest.raises(UnsupportedTokenizer, match=reason):
        read_character_bpe(data, read_spec(data))


@pytest.mark.parametrize("family", [f for f in REAL if f == "gemma3"] + ["ours"])
def test_the_device_serves_them(family: str) -> None:
    """Ids of added tokens may need more bits than those of the vocabulary."""
    check_support(bench(family).spec)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"normalizers": ("Prepend", "Replace")}, "a blank before each piece"),
        ({"normalizers": ("NFKC", "Replace")}, "the normalizer NFKC"),
        ({"max_model_id": 1 << 18}, "ids of the vocabulary up to 262144"),
        ({"max_id": 1 << 31}, "31 bits"),
        ({"dropout": 0.1}, "dropout"),
    ],
)
def test_what_the_device_refuses(changes: dict[str, Any], reason: str) -> None:
    """What the kernel's tables cannot hold, or its stages do not do."""
    with pytest.raises(UnsupportedTokenizer, match=reason):
        check_support(replace(bench("ours").spec, **changes))


@pytest.mark.parametrize(("shortest", "longest"), [(1, 121), (9, 9)])
def test_runs_that_a_window_cannot_hold_are_refused(shortest: int, longest: int) -> None:
    """The end of a token that begins in a tile must be in sight."""
    template = bench("ours").spec.added_tokens[0]
    runs = tuple(replace(template, id=n, content="x" * n) for n in range(shortest, longest + 1))
    with pytest.raises(UnsupportedTokenizer, match=f"{shortest} to {longest} times"):
        check_support(replace(bench("ours").spec, added_tokens=runs))
