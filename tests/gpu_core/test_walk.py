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


RUNS = {"digits": "0123456789", "newlines": "\n\r\n", "letters": "aZqMz"}


@pytest.mark.parametrize("bench", [EMBEDDED], indirect=True)
@pytest.mark.parametrize("kind", RUNS)
def test_long_runs_are_followed_to_their_beginning(bench: Bench, kind: str) -> None:
    """Runs of thousands, after anything, in one document or from one into the next, are split as the reference does."""
    for length in (3713, 4672, 9001):
        run = (RUNS[kind] * length)[:length]
        texts = [before + run + "!" for before in ("", "a", " ", "!", "1", "\n", "\u0661", "\u00e9")]
        texts += [run, run, run[:5000] + "\u0662" + run, run[:4321] + "x" + run, "!" + run[:930], run]
        result = bench.pipeline.encode([text.encode() for text in texts])
        for document, text in enumerate(texts):
            if result.reasons[document] == 0:
                assert result.document_ids(document).tolist() == bench.reference_ids(text)
        if kind == "digits":
            assert not any(result.reasons)


@pytest.mark.parametrize("bench", [EMBEDDED], indirect=True)
@pytest.mark.parametrize("n_tiles", [1, 2, 34])
def test_runs_that_fill_tiles(bench: Bench, n_tiles: int) -> None:
    """Digits from and up to the borders of tiles, more of them than one step leaps over, cut in the middle or not."""
    tile = bench.tables.tile
    literal = next(token.content for token in bench.spec.added_tokens if not token.single_word)
    digits = ("3141592653" * (n_tiles * tile // 10 + 2))[: n_tiles * tile + 2]
    for before in (tile - 1, tile, tile + 1):
        for cut in ("", "\u0663", literal):
            for length in (len(digits) - 3, len(digits) - 2, len(digits)):
                middle = length // 2
                text = "w " * (before // 2) + "w" * (before % 2) + digits[:middle] + cut + digits[middle:length] + "!"
                result = bench.pipeline.encode([text.encode()], n_fetchers=2 * (before % 2))
                assert result.reasons == [0]
                assert result.document_ids(0).tolist() == bench.reference_ids(text)
