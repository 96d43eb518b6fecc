"""The model part of a file, as far as no other test sees it."""

import json

import numpy as np
import pytest

from gpu_core.bpe_file import entry_lengths, read_bpe_model
from tests.data import EMBEDDED, tokenizer_json


@pytest.mark.parametrize("family", ["byte_bpe", "split_bpe", EMBEDDED])
def test_lengths_of_entries(family: str) -> None:
    """They are those of the entries themselves; an entry that no text can spell has none."""
    data = tokenizer_json(family)
    file = json.loads(data)
    unspellable = max(file["model"]["vocab"].values()) + 1
    file["model"]["vocab"]["\ue000 no text"] = unspellable
    lengths = entry_lengths(file["model"]["vocab"], unspellable + 1)
    expected = np.zeros(unspellable + 1, dtype=np.int32)
    for entry, number in read_bpe_model(json.dumps(file).encode()).entries.items():
        expected[number] = len(entry)
    assert lengths.tolist() == expected.tolist()
    assert lengths[unspellable] == 0
