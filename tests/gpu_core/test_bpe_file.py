"""The model part of a file, as far as no other test sees it."""

import json

import numpy as np
import pytest

from gpu_core.bpe_file import read_bpe_model, read_entry_lengths
from gpu_core.errors import UnsupportedTokenizer
from tests.data import EMBEDDED, tokenizer_json


@pytest.mark.parametrize("family", ["byte_bpe", "split_bpe", EMBEDDED])
def test_lengths_of_entries(family: str) -> None:
    """They are those of the entries themselves; an entry that no text can spell has none."""
    data = tokenizer_json(family)
    file = json.loads(data)
    unspellable = max(file["model"]["vocab"].values()) + 1
    file["model"]["vocab"]["\ue000 no text"] = unspellable
    data = json.dumps(file).encode()
    lengths = read_entry_lengths(data, unspellable + 1)
    expected = np.zeros(unspellable + 1, dtype=np.int32)
    for entry, number in read_bpe_model(data).entries.items():
        expected[number] = len(entry)
    assert lengths.tolist() == expected.tolist()
    assert lengths[unspellable] == 0


def test_lengths_of_a_vocabulary_that_lacks_bytes() -> None:
    """It is refused as when all of it is read."""
    file = json.loads(tokenizer_json("byte_bpe"))
    del file["model"]["vocab"]["a"]
    with pytest.raises(UnsupportedTokenizer, match="lacks 1 of the 256"):
        read_entry_lengths(json.dumps(file).encode(), 1 << 20)
