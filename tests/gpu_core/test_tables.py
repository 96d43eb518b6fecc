"""Tables of a tokenizer: what is in them, what is refused, and that a cached copy is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from gpu_core import cuckoo, slots
from gpu_core.bpe_file import read_bpe_model
from gpu_core.closed import closed_entries
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.layout import TABLES
from gpu_core.slots import key_words
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables, check_support, load_tables
from tests.data import EMBEDDED, tokenizer_json


def changed(data: bytes, **changes: Any) -> bytes:
    """The file with other values; `model__x` stands for a field of the model."""
    file = json.loads(data)
    for name, value in changes.items():
        owner, _, field = name.rpartition("__")
        (file[owner] if owner else file)[field] = value
    return json.dumps(file).encode()


@pytest.mark.parametrize("family", ["byte_bpe", "split_bpe", EMBEDDED])
def test_every_entry_is_found_in_one_of_its_slots(family: str) -> None:
    """Each short entry with its id; each rule with its place in the order."""
    data = tokenizer_json(family)
    built = build_tables(data, read_spec(data))
    model = read_bpe_model(data)
    entries = model.entries if model.ignore_merges else closed_entries(model)
    short = [entry for entry in entries if len(entry) <= slots.SHORT_KEY]
    words = key_words(short)
    numbers, table = built.numbers, built.arrays["short_slots"]
    found = np.zeros(len(short), dtype=np.uint32)
    for side in "ab":
        factors = np.array([numbers[f"short_{side}{word}"] for word in range(4)], dtype=np.uint32)
        at = (words * factors).sum(axis=1, dtype=np.uint32) >> np.uint32(numbers["short_shift"])
        same = (table[at, :3] == words[:, :3]).all(axis=1) & (table[at, 3] & 15 == words[:, 3])
        found[same] = table[at[same], 3] >> 4
    assert found.tolist() == [entries[entry] for entry in short]
    n_rules = len(model.rules.by_pair())
    assert np.count_nonzero(built.arrays["merge_slots"] != np.uint64(0xFFFFFFFFFFFFFFFF)) == n_rules


@pytest.mark.parametrize("family", ["byte_bpe", EMBEDDED])
def test_closed_entries_are_those_that_merging_reaches(family: str) -> None:
    """Compared with the reference, entry by entry, without its pre-tokenizer."""
    data = tokenizer_json(family)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    bare = changed(data, added_tokens=[], pre_tokenizer=byte_level, post_processor=None)
    reference = Tokenizer.from_str(bare.decode())
    model = read_bpe_model(data)
    closed = closed_entries(model)
    texts = [entry.decode() for entry in list(model.entries)[:: 1 if family == "byte_bpe" else 40] if _is_text(entry)]
    for text, encoding in zip(texts, reference.encode_batch(texts, add_special_tokens=False), strict=True):
        assert (encoding.ids == [model.entries[text.encode()]]) == (text.encode() in closed)


def _is_text(entry: bytes) -> bool:
    try:
        entry.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_cached_copy_is_the_same_and_a_damaged_one_is_built_anew(tmp_path: Path) -> None:
    """Second load reads what the first one wrote; garbage in the file costs time, not correctness."""
    data = tokenizer_json("split_bpe")
    spec = read_spec(data)
    first, second = load_tables(data, spec, tmp_path), load_tables(data, spec, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"garbage")
    third = load_tables(data, spec, tmp_path)
    for other in (second, third, build_tables(data, spec)):
        assert other.numbers == first.numbers
        assert other.defines == first.defines
        assert list(other.arrays) == list(first.arrays)
        for name, array in first.arrays.items():
            np.testing.assert_array_equal(other.arrays[name], array)


def test_struct_holds_every_number_and_the_addresses() -> None:
    """A field for each array and number, in the order of the struct; an empty array is a null pointer."""
    data = tokenizer_json("byte_bpe")
    built = build_tables(data, read_spec(data))
    names = TABLES.names or ()
    assert set(names) == {*built.arrays, *built.numbers}
    struct = built.struct({name: 64 * (i + 1) for i, name in enumerate(built.arrays)})
    assert struct["nfc_pages"] == 0
    assert struct["ascii"] == 64
    assert struct["merge_shift"] == built.numbers["merge_shift"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model__dropout": 0.1}, "dropout"),
        ({"model__end_of_word_suffix": "</w>"}, "prefix or suffix"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}}, "pattern family"),
    ],
)
def test_what_is_not_exact_is_refused_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    """Each obstacle has its own message."""
    data = changed(tokenizer_json("split_bpe"), **changes)
    with pytest.raises(UnsupportedTokenizer, match=reason):
        check_support(read_spec(data))


@pytest.mark.parametrize("family", ["unigram", "word_piece", "character_bpe"])
def test_other_models_are_refused(family: str) -> None:
    """Only byte-level BPE is served so far."""
    with pytest.raises(UnsupportedTokenizer):
        check_support(read_spec(tokenizer_json(family)))


def test_cuckoo_places_every_key_or_says_so() -> None:
    """Random keys all lie in one of their slots; three equal keys cannot."""
    keys = np.random.default_rng(1).integers(0, 1 << 32, size=(50_000, 2), dtype=np.uint32)
    placement = next(p for seed in cuckoo.seeds() if (p := cuckoo.place(keys, seed)))
    assert sorted(placement.owner[placement.owner >= 0].tolist()) == list(range(len(keys)))
    slots = cuckoo.slots_of(keys, placement.seed, placement.shift)
    assert ((placement.owner[slots] == np.arange(len(keys))).any(axis=0)).all()
    assert cuckoo.place(np.zeros((3, 2), dtype=np.uint32), 1) is None
