"""What a block knows about text near the end of its window."""

import pytest

from tests.data import EMBEDDED
from tests.gpu_core.conftest import Bench

BEFORE = ("  ", "\u3000", "\t\t", "a ", "'s")


@pytest.mark.parametrize("bench", [EMBEDDED], indirect=True)
def test_added_token_that_leaves_the_window(bench: Bench) -> None:
    """What stands before an added token belongs to the end of a text, even if the token ends beyond the window."""
    literal = max((token.content for token in bench.spec.added_tokens), key=lambda content: len(content.encode()))
    texts = [
        "w " * 350 + " " * (n_blanks - 700 - len(before.encode())) + before + literal + " tail"
        for n_blanks in range(940, 970)
        for before in BEFORE
    ]
    for text in texts:
        result = bench.pipeline.encode([text.encode()])
        assert result.reasons == [0]
        assert result.document_ids(0).tolist() == bench.reference_ids(text)
