"""Documents with long pre-tokens: what pieces come to is what the reference answers, or the CPU is asked."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from gpu_core.classes import FAMILY_CLASSES
from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import FLAG_IDS, FLAG_TOKEN_STARTS, REASON_TOO_LONG, REASONS
from gpu_core.long_runs import MARGIN, OVERLAP, STEP, LongRuns, NoSeam, Pieces, lengths_in, long_runs_of
from gpu_core.options import GpuOptions
from gpu_core.shim import HostPipeline
from gpu_core.shim.joining import HostJoin
from gpu_core.spec import read_spec
from tests.data import FULL, families, tokenizer_json
from tests.gpu_core.conftest import Bench, device_families
from tests.gpu_core.long_texts import RUNS, random_text

BYTE_LEVEL = [f for f in device_families() if read_spec(tokenizer_json(f)).pattern_family in FAMILY_CLASSES]
every_family = pytest.mark.parametrize("bench", BYTE_LEVEL, indirect=True)
one_family = pytest.mark.parametrize("bench", [f for f in BYTE_LEVEL if f in {"split_bpe", "embedded"}], indirect=True)


def encoder_of(bench: Bench, shim_cache: Path, capacity: int = 1 << 18) -> Encoder:
    """An encoder over the kernels on the host, one document or piece at a time, and the one that joins pieces."""
    # A block of the grid costs time even if it has no text.
    pipelines = [HostPipeline(bench.tables, shim_cache, capacity) for capacity in (800, 2400, 8 << 10)]

    def encode(document: bytes) -> list[tuple[int, int]] | int:
        one = next(pipeline for pipeline in pipelines if len(document) <= pipeline.capacity)
        result = one.encode([document], flags=FLAG_IDS | FLAG_TOKEN_STARTS)
        return result.reasons[0] or list(zip(result.ids.tolist(), result.token_starts.tolist(), strict=True))

    options = GpuOptions(size_classes_bytes=(capacity,), token_starts=True)
    return Encoder(
        bench.spec,
        HostDevice(encode, join=HostJoin(shim_cache, capacity)),
        options,
        long_runs=long_runs_of(bench.spec, bench.tables),
    )


@every_family
def test_answers_are_the_references(bench: Bench, shim_cache: Path) -> None:
    """Runs of every kind between texts of every kind; nearly all of them are answered."""
    rng, one = random.Random(1), encoder_of(bench, shim_cache)
    literals = [token.content for token in bench.spec.added_tokens][:5]
    texts = [random_text(rng, kind, literals) for kind in RUNS for _ in range(25 if FULL else 2)]
    documents = [text.encode() for text in texts]
    encoding = one.encode(documents, token_starts=True)
    assert one.encode(documents, count_only=True).needs_cpu == encoding.needs_cpu
    for i, text in enumerate(texts):
        if i not in encoding.needs_cpu:
            assert encoding.ids(i).tolist() == bench.reference_ids(text), repr(text[:60])
            starts = encoding.token_starts(i).astype(np.int64)
            assert starts[0] == 0
            assert (np.diff(starts) > 0).all()
            assert starts[-1] < len(documents[i])
            assert encoding.n_tokens(i) == len(starts)
    too_long = [i for i, reason in encoding.needs_cpu.items() if reason == REASONS[REASON_TOO_LONG]]
    assert len(too_long) < len(texts) // 4


@one_family
def test_many_documents_of_one_call(bench: Bench, shim_cache: Path) -> None:
    """Documents with and without long runs, and one for the CPU, keep their places; contexts come back."""
    one = encoder_of(bench, shim_cache)
    texts = ["a" * 2000, "fine", "x" + " " * 900 + "y", "", "b" * 700]
    documents = [*(text.encode() for text in texts), b"\xff" + b"c" * 600]
    encoding = one.encode(documents)
    assert list(encoding.needs_cpu) == [5]
    assert [encoding.ids(i).tolist() for i in range(5)] == [bench.reference_ids(text) for text in texts]
    encoding.release()
    assert [len(free) for free in one._free] == [2]


@one_family
def test_documents_beyond_the_largest_class(bench: Bench, shim_cache: Path) -> None:
    """A document that cannot be cut into replays as it is can be taken in pieces."""
    one = encoder_of(bench, shim_cache, 2048)
    texts = ["fine", "a" * 5000, "some words " * 300]
    encoding = one.encode([text.encode() for text in texts])
    assert encoding.needs_cpu == {}
    assert [encoding.ids(i).tolist() for i in range(3)] == [bench.reference_ids(text) for text in texts]


@one_family
def test_tokens_out_of_step(bench: Bench, shim_cache: Path) -> None:
    """What stands before a run of one character may move its tokens; pieces are then cut where these begin."""
    one = encoder_of(bench, shim_cache)
    texts = [before + sign * 3000 + "." for sign in "=-a " for before in ("", " ", "x", "(", "'", "ab ")]
    encoding = one.encode([text.encode() for text in texts])
    answered = [i for i in range(len(texts)) if i not in encoding.needs_cpu]
    assert len(answered) > len(texts) // 2
    for i in answered:
        assert encoding.ids(i).tolist() == bench.reference_ids(texts[i])


@one_family
def test_pieces_end_inside_runs(bench: Bench) -> None:
    """Pieces overlap, are short where the run is, begin and end at characters, and keep away from its ends."""
    long_runs = LongRuns(bench.spec, lengths_in(bench.spec, bench.tables))
    for character in ("a", "é", "ё", "한", "="):
        text = f"before {character * 2000} behind".encode()
        begin, end = text.index(character.encode()), text.rindex(character.encode())
        pieces = long_runs.cut(text)
        assert pieces is not None
        assert [piece.decode() for piece in pieces.texts(text)]
        assert (pieces.starts[0], pieces.ends[-1]) == (0, len(text))
        assert (pieces.starts[1:] < pieces.ends[:-1]).all()
        assert pieces.starts[1] > begin + MARGIN
        assert pieces.ends[-2] <= end - MARGIN
        assert (pieces.ends - pieces.starts).max() <= STEP + OVERLAP + MARGIN + len(b"before  behind")
    assert long_runs.cut(b"short words only " * 100) is None
    # Line ends only where no piece may end.
    assert long_runs.cut(b"\n" + b"\t" * 2000 + b"\n") is None
    assert long_runs.cut(b"") is None
    assert long_runs.cut(b"\xff" + b"a" * 1000) is None


@one_family
def test_pieces_that_do_not_fit_together(bench: Bench) -> None:
    """Without a common token, or when the tokens are not as long as their pieces, there is no answer."""
    long_runs = LongRuns(bench.spec, lengths_in(bench.spec, bench.tables))
    (a,), (aa,) = (np.array(bench.reference_ids(text), np.uint32) for text in ("a", "!"))
    pieces = Pieces(np.array([0, 4]), np.array([8, 12]))
    eight, both = np.array([8, 8]), np.repeat(a, 16)
    ids, starts = long_runs.join(pieces, both, eight)
    assert (ids.tolist(), starts.tolist()) == ([a] * 12, list(range(12)))
    with pytest.raises(NoSeam):
        long_runs.join(pieces, np.concatenate([both[:8], np.repeat(aa, 8)]), eight)
    with pytest.raises(NoSeam):
        long_runs.join(pieces, both[:15], np.array([8, 7]))
    with pytest.raises(NoSeam):
        long_runs.join(pieces, both[:8], np.array([8, 0]))


def test_without_long_runs_the_cpu_is_asked() -> None:
    """An encoder without them names the document; a device that refuses the pieces too has no answer either."""
    family = next(family for family in families() if family == "split_bpe")
    spec = read_spec(tokenizer_json(family))
    device = HostDevice(lambda document: REASON_TOO_LONG)
    one = Encoder(spec, device, GpuOptions(size_classes_bytes=(4096,), token_starts=True))
    assert one.encode([b"a" * 1000]).needs_cpu == {0: REASONS[REASON_TOO_LONG]}
