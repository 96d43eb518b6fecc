"""Run by test_sanitizers.py in a process of its own: the kernels under sanitizers, against the reference."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tokenizers import Tokenizer

from gpu_core.decoder import DecodeOptions, load_decoder
from gpu_core.layout import TILE
from gpu_core.shim import HostPipeline
from gpu_core.shim.decimals import HostDecimals
from gpu_core.shim.decoding import HostDecodeDevice
from gpu_core.shim.joining import HostJoin
from gpu_core.shim.normalizing import HostNormal
from gpu_core.spec import read_spec
from gpu_core.tables import build_tables
from gpu_core.twin_decimal import decimal_text
from gpu_core.twin_join import join_pieces
from gpu_core.twin_normal import normalize
from tests.gpu_core.bridge_files import file_of
from tests.gpu_core.decimal_ids import ids_of_lengths
from tests.gpu_core.join_pieces import random_pieces
from tests.gpu_core.marked_texts import LITERALS, random_document
from tests.gpu_core.texts import random_text


def main(family: str, cache_dir: str, *flags: str) -> None:
    """Encode random batches; any report of a sanitizer ends the process with a failure."""
    data = file_of(family)
    spec = read_spec(data)
    reference = Tokenizer.from_str(data.decode())
    pipeline = HostPipeline(build_tables(data, spec), Path(cache_dir), 32 << 10, flags=flags)
    rng = random.Random(1)
    literals = [token.content for token in spec.added_tokens]
    n_answered = 0
    for n in (0, 1, 40, TILE, 3_000):
        texts = [random_text(rng, literals, n), "", random_text(rng, literals, n // 2), "=" * n, "\n" + " " * n]
        texts += ["\n" * (n // 2) + "\u2581" * (n // 4)]
        result = pipeline.encode([text.encode() for text in texts])
        for i, text in enumerate(texts):
            if result.reasons[i] == 0:
                n_answered += 1
                assert result.document_ids(i).tolist() == reference.encode(text, add_special_tokens=False).ids
    pipeline.encode([b"\xff\xe4\xb8", b"\xb8"])
    decode(data, reference, HostDecodeDevice(Path(cache_dir), flags), rng)
    join(HostJoin(Path(cache_dir), flags=flags), rng)
    decimals(HostDecimals(Path(cache_dir), flags=flags), rng)
    normal(HostNormal(Path(cache_dir), LITERALS, flags=flags), rng)
    print(f"answered {n_answered}")


def decode(data: bytes, reference: Tokenizer, device: HostDecodeDevice, rng: random.Random) -> None:
    """Decode random sequences, in one launch and in several."""
    decoder = load_decoder(data, device, DecodeOptions(capacity_ids=2048, max_sequences=50))
    n_ids = len(decoder.tables.pieces)
    for n in (1, 40, 60):
        sequences = [[rng.randrange(n_ids + 5) for _ in range(rng.randrange(60))] for _ in range(n)]
        decoding = decoder.decode(sequences, skip_special_tokens=n == 40)
        expected = reference.decode_batch(sequences, skip_special_tokens=n == 40)
        assert [decoding.text(i) for i in range(n)] == expected


def join(kernel: HostJoin, rng: random.Random) -> None:
    """Join pieces that fit together and pieces that do not."""
    for n_documents, n_pieces in ((1, 1), (1, 9), (40, 3)):
        for strange in (0.0, 0.1):
            pieces = random_pieces(rng, n_documents, n_pieces, strange)
            assert kernel(pieces).ids.tolist() == join_pieces(pieces).ids.tolist()


def decimals(kernel: HostDecimals, rng: random.Random) -> None:
    """Write numbers with room for all of them, and with less."""
    for lengths in ([], [0, 5], [1023, 0, 1], [1024], [700] * 5):
        ids, tokens = ids_of_lengths(rng, lengths)
        text, starts = decimal_text(ids, tokens)
        for room in (len(text), len(text) // 2):
            got = kernel(ids, tokens, room)
            assert (got.text, got.document_decimals.tolist()) == (text[:room], starts.tolist())


def normal(kernel: HostNormal, rng: random.Random) -> None:
    """Bring documents of every kind into normal form, also where there is no room for it."""
    for n_parts in (0, 1, 30, 600, 3000):
        for broken in (0.0, 0.3):
            documents = [random_document(rng, n_parts // n, broken) for n in (1, 2, 20)]
            for room in (1 << 16, 1000):
                got, expected = kernel(documents, room), normalize(documents, LITERALS, room)
                assert (got.text, got.flagged) == (expected.text, expected.flagged)


if __name__ == "__main__":
    main(*sys.argv[1:])
