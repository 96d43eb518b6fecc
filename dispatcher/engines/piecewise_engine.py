"""An engine that takes documents with very long pre-tokens in pieces, because its time grows with the pre-token.

    a megabyte of random letters, no blank        whole: 35 times a megabyte of books       in pieces: 7 times

Where there are certain borders, a document is cut at these, and the ids of its parts are put one behind the other. What
has none, as one letter over and over, is cut into pieces that overlap, see `gpu_core.long_runs`. The ids are those of
the engine for the whole document either way.
"""

from __future__ import annotations

import json
import re
import string
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from dispatcher.engines.certain_borders import MARGIN, NARROW, STEP, WIDE, CertainBorders
from dispatcher.engines.engine import CpuEngine
from gpu_core.bpe_file import entry_lengths
from gpu_core.long_runs import OVERLAP, LongRuns, NoSeam, Pieces, can_be_cut, with_added_tokens
from gpu_core.spec import TokenizerSpec

SAMPLE_EVERY = 4096
"""Characters between two looks at a document. Every run of twice as many is seen; shorter documents stay whole."""
FIRST_OVERLAP = 64
"""Bytes that pieces share in the first attempt: less work. The second one shares `OVERLAP`."""
PIECE_STEP = 1024
"""Bytes from one piece to the next: less is shared than on the device, whose pieces are short."""
LONGEST_PART = 2048
"""Parts up to this length are encoded together; a longer one may hold a long run."""
MANY = 256
"""So many documents may be the same few over and over."""
_RUN = re.compile(r"[^\W\d_]{256}|\s{256}|(?:[^\w\s]|_){256}|\d{256}")
_STRETCH = re.compile(f"[0-9A-Za-z]{{{STEP - NARROW + 1}}}")
"""What every part has in it."""
_LOWER, _UPPER, _DIGITS = (text.encode() for text in (string.ascii_lowercase, string.ascii_uppercase, string.digits))
_SIGNS = string.punctuation.encode()
_ASCII_AS = {"o200k": "cl100k", "tekken": "cl100k", "kimi_k2": "cl100k", "qwen3_5": "cl100k", "digits_gpt2": "gpt2"}
"""Pattern families that have, in ASCII, runs as another family has: they are the same but for marks, other scripts, for
the number of digits, and for borders between letters, where a cut is as good as inside a pre-token."""


class PiecewiseEngine:
    """See `CpuEngine`; everything but `encode` and `encode_many` is the engine's own."""

    def __init__(self, engine: CpuEngine, spec: TokenizerSpec, data: bytes) -> None:
        self.name, self.version, self.guard_digest = engine.name, engine.version, engine.guard_digest
        self.guard = engine.guard
        self._encode, self._encode_many = engine.encode, engine.encode_many
        self._long_runs: list[LongRuns] = []
        self._borders: CertainBorders | None = None
        # Marks of one piece must not compose with a character of another.
        self._ascii_only = bool(spec.normalizers) or spec.pattern_family in _ASCII_AS
        # ASCII letters behind a sign end where other letters begin, other ASCII letters do not.
        self._has_ascii_borders = self._ascii_only or spec.pattern_family == "deepseek_v3"
        as_family = replace(spec, pattern_family=_ASCII_AS.get(spec.pattern_family, spec.pattern_family))
        # Made at load: the first document that needs it would wait for the file to be read.
        if can_be_cut(as_family) and spec.normalizers in {(), ("NFC",)}:
            model = json.loads(data)["model"]
            self._long_runs = _long_runs(as_family, model["vocab"])
            self._borders = _borders(spec, model)
        self._can_cut = bool(self._long_runs) or self._borders is not None

    def encode(self, document: str) -> bytes:
        """See `CpuEngine`."""
        if self._is_long(document):
            return self._in_parts(document)
        return self._encode(document)

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """See `CpuEngine`."""
        if max(map(len, documents), default=0) > SAMPLE_EVERY:
            if any(map(self._is_long, documents)):
                return [self.encode(document) for document in documents]
        elif len(documents) >= MANY and 2 * len(set(documents[:MANY])) < MANY:
            different = list(dict.fromkeys(documents))
            ids = dict(zip(different, self._encode_many(different), strict=True))
            return [ids[document] for document in documents]
        return self._encode_many(documents)

    def _is_long(self, document: str) -> bool:
        """Whether there may be a run in it that can be cut."""
        return self._can_cut and len(document) > SAMPLE_EVERY and _may_have_long_run(document)

    def _in_parts(self, document: str) -> bytes:
        """Cut at certain borders, and parts that are still long in pieces that overlap."""
        if self._ascii_only and not document.isascii():
            return self._encode(document)
        ids: list[bytes] = []
        for is_long, group in groupby(self._parts(document), key=lambda part: len(part) > LONGEST_PART):
            parts = list(group)
            ids += map(self._in_pieces, parts) if is_long else self._encode_many(parts)
        return b"".join(ids)

    def _parts(self, document: str) -> list[str]:
        is_ascii = document.isascii()
        if self._borders is None or (self._has_ascii_borders and not is_ascii):
            return [document]
        text = document.encode()
        places = pairwise([0, *self._borders.find(text), len(text)])
        if is_ascii:
            return [document[begin:end] for begin, end in places]
        return [text[begin:end].decode() for begin, end in places]

    def _in_pieces(self, document: str) -> bytes:
        """As a whole if there is no long run after all, or the pieces do not fit together."""
        text = document.encode()
        for long_runs in self._long_runs:
            shift = 0
            for _attempt in range(2):
                pieces = long_runs.cut(text, shift)
                if pieces is None:
                    return self._encode(document)
                try:
                    return self._joined(long_runs, pieces, text)
                except NoSeam as error:
                    shift = error.shift
                if not shift:
                    break
        return self._encode(document)

    def _joined(self, long_runs: LongRuns, pieces: Pieces, text: bytes) -> bytes:
        rows = self._encode_many([piece.decode() for piece in pieces.texts(text)])
        counts = np.array([len(row) // 4 for row in rows])
        ids, _starts = long_runs.join(pieces, np.frombuffer(b"".join(rows), np.uint32), counts)
        return ids.tobytes()


def _long_runs(spec: TokenizerSpec, vocab: dict[str, int]) -> list[LongRuns]:
    """One for each overlap, the cheaper first."""
    lengths = with_added_tokens(spec, entry_lengths(vocab, spec.max_id + 1))
    made = [LongRuns(spec, lengths, overlap, SAMPLE_EVERY, PIECE_STEP) for overlap in (FIRST_OVERLAP, OVERLAP)]
    # Where merges count, no piece is looked up as a whole.
    return [long_runs for long_runs in made if long_runs.is_exact or not spec.ignore_merges]


def _borders(spec: TokenizerSpec, model: dict[str, Any]) -> CertainBorders | None:
    """None for a tokenizer where parts might be looked up as a whole, or whose tokens depend on where a word ends."""
    vocab = model["vocab"]
    if spec.continuing_subword_prefix or spec.end_of_word_suffix:
        return None
    # Some families split between letters where upper case begins, and between digits.
    kinds = [_LOWER if spec.pattern_family in _ASCII_AS else _LOWER + _UPPER]
    kinds += [_DIGITS] if spec.pattern_family == "gpt2" else []
    kinds += [] if spec.ignore_merges else [_SIGNS]
    literals = [token.content for token in spec.added_tokens]
    known = [bytes(byte for byte in kind if chr(byte) in vocab) for kind in kinds]
    kinds = [kind for kind in known if kind and not _may_lie_in_run(literals, kind)]
    if not kinds:
        return None
    if not spec.ignore_merges:
        return CertainBorders(model["merges"], kinds, WIDE)
    # No part may be looked up as a whole, without merges.
    is_short = not any(len(entry) > STEP - NARROW and _STRETCH.search(entry) for entry in vocab)
    return CertainBorders(model["merges"], kinds, NARROW) if is_short else None


def _may_lie_in_run(literals: list[str], kind: bytes) -> bool:
    """Whether an added token is of one kind, or reaches too far into a run of it."""
    stretches = re.compile("[" + re.escape(kind.decode()) + "]+").findall
    return any(len(stretch) >= min(len(literal), MARGIN) for literal in literals for stretch in stretches(literal))


def _may_have_long_run(document: str) -> bool:
    look = _RUN.match
    return any(look(document, at) is not None for at in range(0, len(document), SAMPLE_EVERY))
