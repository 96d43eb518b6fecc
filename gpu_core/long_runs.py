"""Documents with a pre-token that is too long for the device, answered through pieces that overlap.

    document    x aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa y        one run of letters, blanks, punctuation, ...
    pieces      x aaaaaaaaaaaaaaaa                          each is encoded as a document of its own
                          aaaaaaaaaaaaaaaa
                                  aaaaaaaaaaaaaaaa y
    tokens      x|aaaa|aaaa|aaaa                            neighbours that have a token in common, at the same place,
                          aaaa|aaaa|aa                      are joined behind it

Why that is exact. (1) A piece that begins or ends inside a run has the pre-tokens of the document, but for the one that
is cut; see `_cuts` for what "inside" means. (2) Merges of a pre-token never cross a border of its tokens, so that what
lies on one side does not matter for the other: bytes between two borders have the same tokens by themselves. (3) If the
last token of `a` and the first one of `b` stay two tokens when they are encoded together, then tokens(a + b) =
tokens(a) + tokens(b): the first merge across the border would look the same with the two tokens alone. With a common
token X between L and M: L X are neighbours in one piece, X M in the other, so both borders of X hold.

BPE over characters has no pre-tokens: all text between two added tokens is one, and one run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from gpu_core.classes import FAMILY_CLASSES, family_classes
from gpu_core.layout import MAX_PRETOKEN
from gpu_core.run_literals import split_literals
from gpu_core.runs import AsciiRuns, Run, runs_in
from gpu_core.slots import ID_BITS
from gpu_core.spec import TokenizerSpec
from gpu_core.tables import Tables

STEP = 256
"""Bytes from one piece to the next. Tokens of equal characters have 2, 4, 8, ... of them and fall into step."""
OVERLAP = 192
"""Bytes that two neighbours share: room for a whole token of 128."""
MIN_RUN = 320
"""A shorter run is not cut; with what may stand before and behind it, a pre-token of it is short enough."""
SEARCHED = (32, 128)
"""Bytes from the beginning of a piece in which a common token may begin; the second if the first is not enough."""
PIECES_PER_COPY = 4
"""Fewer equal pieces behind each other are not worth a copy of their own."""
FEW_LITERALS = 64
"""So many added tokens of one kind are looked for one by one."""
MARGIN = 64
"""Bytes at both ends of a run in which no piece begins or ends: an added token may reach into it so far."""
_LETTER, _NUMBER, _WHITE, _OTHER, _PUNCTUATION, _CJK, _OTHER_LETTER = range(1, 8)
_KINDS = {
    "letter": _LETTER,
    "plain_space": _WHITE,
    "blank": _WHITE,
    "newline": _WHITE,
    "other": _OTHER,
    "punctuation": _PUNCTUATION,
    "cjk": _CJK,
}
_ONE_WORD = "sentencepiece"
_Cuts = tuple[NDArray[np.int64], NDArray[np.int64]]
assert STEP + OVERLAP + MARGIN <= MAX_PRETOKEN


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the pieces of a document begin; each one ends `OVERLAP` or less behind the beginning of the next."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def texts(self, document: bytes) -> list[bytes]:
        """The pieces themselves."""
        return [document[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each."""
        return self.ends - self.starts

    def write(self, document: bytes, target: NDArray[np.uint8]) -> None:
        """Put the pieces one behind the other; `target` is as long as all of them."""
        lengths, steps = self.lengths, np.diff(self.starts)
        differs = lengths[1:] != lengths[:-1]
        differs[1:] |= steps[1:] != steps[:-1]
        firsts = [0, *(np.flatnonzero(differs) + 1).tolist()]
        if len(firsts) * PIECES_PER_COPY > len(lengths):
            text, to, at = memoryview(document), target.data, 0
            for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
                to[at : at + end - start] = text[start:end]
                at += end - start
            return
        # Pieces of one length that are equally far apart are rows of a matrix over the document.
        data, at = np.frombuffer(document, np.uint8), 0
        for first, end in zip(firsts, [*firsts[1:], len(lengths)], strict=True):
            length, step = int(lengths[first]), int(steps[first]) if end - first > 1 else 1
            rows = sliding_window_view(data, length)[int(self.starts[first]) :: step][: end - first]
            target[at : at + rows.size].reshape(rows.shape)[...] = rows
            at += rows.size


class LongRuns:
    """Cuts documents of one tokenizer into pieces, and joins the ids of the pieces."""

    def __init__(
        self,
        spec: TokenizerSpec,
        lengths: NDArray[np.int32],
        overlap: int = OVERLAP,
        min_run: int = MIN_RUN,
        step: int = STEP,
    ) -> None:
        """`lengths`: bytes of each token, by id. `overlap`: bytes that neighbours share. Shorter runs stay whole.

        `step`: bytes from one piece to the next.
        """
        family = spec.pattern_family
        self._kinds = _kinds_by_point(spec)
        self._has_newline_rule = family not in {"gpt2", _ONE_WORD}
        self._has_ascii_tails = family == "deepseek_v3"
        if self._has_ascii_tails:
            self._kinds[128:][self._kinds[128:] == _LETTER] = _OTHER_LETTER
        self._ascii_runs = AsciiRuns(self._kinds[:256].tobytes(), min_run)
        self._literals = self._literals_by_kind(token.content for token in spec.added_tokens)
        self._lengths = lengths
        self._overlap, self._min_run, self._step = overlap, min_run, step

    @property
    def is_exact(self) -> bool:
        """Whether every token is shorter than what a piece has of a pre-token, so that none is looked up as a whole."""
        return int(self._lengths.max(initial=0)) <= self._overlap + MARGIN

    def cut(self, document: bytes, shift: int = 0) -> Pieces | None:
        """Pieces without a long pre-token, the cuts `shift` bytes earlier; None if there is no long run."""
        data = np.frombuffer(document, np.uint8)
        runs = self._runs_of(document)
        cuts = [cut for run in runs if (cut := self._cuts(document, data, run, shift)) is not None]
        if not cuts:
            return None
        starts, ends = (np.concatenate(side) for side in zip(*cuts, strict=True))
        if not len(starts):
            return None
        return Pieces(np.concatenate([[0], starts]), np.concatenate([ends, [len(document)]]))

    def join(
        self, pieces: Pieces, ids: NDArray[np.uint32], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Ids of the document, and where its tokens begin, from the ids of all pieces, `counts` of each.

        Raises `NoSeam`.
        """
        tokens = _Tokens.of(pieces, ids, self._lengths, counts)
        seams = _seams(pieces, tokens)
        # Of each piece, the tokens from the seam before it to the one behind it.
        lower = np.concatenate([tokens.first[:1], tokens.index_of(seams, slice(1, None))])
        upper = np.concatenate([tokens.index_of(seams, slice(None, -1)), tokens.first[-1:]])
        steps = np.zeros(len(tokens.ids) + 1, dtype=np.int8)
        steps[lower] += 1
        steps[upper] -= 1
        kept = np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)
        starts = tokens.place[kept] + np.repeat(tokens.offset, upper - lower)
        return tokens.ids[kept], starts.astype(np.uint32)

    def _runs_of(self, document: bytes) -> list[Run]:
        """Runs of one kind that are long enough to be cut; none if the document is no UTF-8."""
        # Three times as fast as `isascii` for long documents.
        if np.frombuffer(document, np.uint8).max(initial=0) < 128:
            return self._ascii_runs.find(document)
        try:
            codes = np.frombuffer(document.decode().encode("utf-32-le"), "<u4")
        except UnicodeDecodeError:
            return []
        # By characters first, which have up to four bytes: these are counted for few runs only.
        found, at, byte = [], 0, 0
        for run in runs_in(self._kinds[codes], self._min_run // 4):
            begin = byte + _n_bytes(codes[at : run.begin])
            at, byte = run.end, begin + _n_bytes(codes[run.begin : run.end])
            if byte - begin > self._min_run:
                found.append(Run(begin, byte, run.kind, run.before, run.behind))
        return found

    def _literals_by_kind(self, literals: Iterable[str]) -> dict[int, _Literals]:
        """Added tokens that a run of a kind may contain: only those of that kind."""
        by_kind: dict[int, list[bytes]] = {}
        for literal in literals:
            kinds = {int(self._kinds[ord(character)]) for character in literal}
            if len(kinds) == 1:
                by_kind.setdefault(kinds.pop(), []).append(literal.encode())
        return {kind: _Literals(found) for kind, found in by_kind.items()}

    def _cuts(self, document: bytes, data: NDArray[np.uint8], run: Run, shift: int) -> _Cuts | None:
        """Of a run: where pieces begin, and where the piece before each of these ends.

        Inside a run of one kind, the split goes on to the end of the run wherever a piece begins, and up to the end of
        a piece wherever that ends. Three things are left out:

        * a run with an added token in it;
        * DeepSeek: ASCII letters behind punctuation end where other letters begin, other ASCII letters do not;
        * white space with line ends ends at the last one, so that a piece must end behind one; and behind punctuation,
          the line ends at the beginning belong to that.
        """
        begin, last = run.begin, run.end
        if self._has_ascii_tails and run.kind == _LETTER and run.behind == _OTHER_LETTER:
            return None
        literals = self._literals.get(run.kind)
        if literals and literals.are_in(document[begin:last]):
            return None
        has_newlines = False
        if run.kind == _WHITE and self._has_newline_rule:
            behind_newline = 1 + max(document.rfind(b"\n", begin, last), document.rfind(b"\r", begin, last))
            if behind_newline:
                if document[begin] in b"\r\n" and run.before in {_OTHER, _PUNCTUATION}:
                    return None
                has_newlines, last = True, behind_newline
        starts = np.arange(begin + self._step - shift, last - self._overlap - MARGIN, self._step)
        stops = starts + self._overlap
        if has_newlines and len(stops):
            stops = _behind_newlines(data, stops, self._overlap)
        starts, stops = _leads(data, starts), _leads(data, stops)
        if (stops - starts < self._overlap // 2).any():
            return None
        return starts, stops


class NoSeam(Exception):
    """Two neighbours have no token in common. With cuts `shift` bytes earlier they may; 0: there is no hope."""

    def __init__(self, shift: int) -> None:
        super().__init__(shift)
        self.shift = shift


def can_be_cut(spec: TokenizerSpec) -> bool:
    """Whether the tokenizer has pre-tokens of a kind that is known here."""
    return spec.pattern_family in FAMILY_CLASSES and spec.byte_level


def long_runs_of(spec: TokenizerSpec, tables: Tables) -> LongRuns | None:
    """For what the device answers; None if documents of the tokenizer cannot be cut."""
    if not can_be_cut(spec) and spec.pattern_family != _ONE_WORD:
        return None
    long_runs = LongRuns(spec, lengths_in(spec, tables))
    return long_runs if long_runs.is_exact else None


def lengths_in(spec: TokenizerSpec, tables: Tables) -> NDArray[np.int32]:
    """Bytes of each token that the device may answer with, by id."""
    # A run of blanks may be an added token, too, as one of U+2581. That is longer, and such text does not fit together.
    lengths = with_added_tokens(spec, np.zeros(spec.max_id + 1, dtype=np.int32))
    lengths[tables.arrays["byte_ids"]] = 1
    short, long = tables.arrays["short_slots"], tables.arrays["long_slots"]
    used = short[(short[:, 3] & 15) > 0]
    lengths[used[:, 3] >> 4 & ((1 << ID_BITS) - 1)] = used[:, 3] & 15
    used = long[long[:, 2] > 0]
    lengths[used[:, 3]] = used[:, 2]
    return lengths


def with_added_tokens(spec: TokenizerSpec, lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """The lengths of entries and of added tokens."""
    for token in spec.added_tokens:
        lengths[token.id] = len(token.content.encode())
    return lengths


def _kinds_by_point(spec: TokenizerSpec) -> NDArray[np.uint8]:
    """The kind of each code point; 0: no piece begins or ends there."""
    family = spec.pattern_family
    if family == _ONE_WORD:
        points = np.full(0x110000, _OTHER, dtype=np.uint8)
        points[[ord(run.character) for run in split_literals(spec)[0]]] = 0
        return points
    kinds = _KINDS | ({"number": _NUMBER} if family == "gpt2" else {})
    by_code = np.array([kinds.get(name, 0) for name in FAMILY_CLASSES[family]], dtype=np.uint8)
    points_of_family: NDArray[np.uint8] = by_code[family_classes(family)]
    return points_of_family


class _Literals:
    """Added tokens, thousands of them in some files, and one at least."""

    def __init__(self, literals: Iterable[bytes]) -> None:
        self._all = frozenset(literals)
        self._lengths = sorted({len(literal) for literal in self._all})
        self._firsts = sorted({literal[:1] for literal in self._all})
        self._first = re.compile(b"[" + b"".join(map(re.escape, self._firsts)) + b"]")
        # Where another one is in it, that need not be looked for: of blanks in all numbers, the fewest.
        few = sorted(self._all, key=len) if len(self._all) <= FEW_LITERALS else []
        self._few = [literal for i, literal in enumerate(few) if not any(other in literal for other in few[:i])]

    def are_in(self, text: bytes) -> bool:
        """Whether one of them is in a text."""
        if self._few:
            return any(literal in text for literal in self._few)
        # To look for one byte is far faster than to look for any of several.
        if not any(first in text for first in self._firsts):
            return False
        return any(
            text[match.start() : match.start() + n] in self._all
            for match in self._first.finditer(text)
            for n in self._lengths
        )


def _n_bytes(codes: NDArray[np.uint32]) -> int:
    """Of these characters as UTF-8."""
    return len(codes) + sum(int(np.count_nonzero(codes > limit)) for limit in (0x7F, 0x7FF, 0xFFFF))


def _behind_newlines(data: NDArray[np.uint8], stops: NDArray[np.int64], overlap: int) -> NDArray[np.int64]:
    """The last places at or before these that are behind a line end; one that is too far away is not found."""
    found, left = np.zeros_like(stops), np.arange(len(stops))
    for back in range(overlap - overlap // 2 + 1):
        before = data[stops[left] - back - 1]
        is_newline = (before == 0x0A) | (before == 0x0D)
        here, left = left[is_newline], left[~is_newline]
        found[here] = stops[here] - back
        if not len(left):
            break
    return found


def _leads(data: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first byte of the character that each byte belongs to."""
    for _ in range(3):
        follows = (data[positions] & 0xC0) == 0x80
        if not follows.any():
            break
        positions = positions - follows
    return positions


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of all pieces, one after the other. Places count the bytes of all pieces before."""

    ids: NDArray[np.uint32]
    place: NDArray[np.int32]
    length: NDArray[np.int32]
    offset: NDArray[np.int32]
    """Of each piece: its positions in the document less its places."""
    first: NDArray[np.int64]
    """Of each piece: index of its first token; and the number of all."""

    @classmethod
    def of(
        cls, pieces: Pieces, ids: NDArray[np.uint32], lengths: NDArray[np.int32], counts: NDArray[np.int64]
    ) -> _Tokens:
        """Raises `NoSeam` when the tokens are not as long as their pieces."""
        own = lengths[ids]
        ends = np.cumsum(own, dtype=np.int32)
        first = np.concatenate([[0], np.cumsum(counts)])
        base = np.concatenate([[0], np.cumsum(pieces.ends - pieces.starts)])
        if not counts.all() or not np.array_equal(ends[first[1:] - 1], base[1:]):
            raise NoSeam(0)
        return cls(ids, ends - own, own, (pieces.starts - base[:-1]).astype(np.int32), first)

    def index_of(self, positions: NDArray[np.int64], pieces: slice) -> NDArray[np.int64]:
        """Index of the first token at or behind a position of the document, in each of these pieces."""
        return np.searchsorted(self.place, (positions - self.offset[pieces]).astype(np.int32))


def _seams(pieces: Pieces, tokens: _Tokens) -> NDArray[np.int64]:
    """Behind a token that a piece and the next one have in common, for all pieces but the last. Raises `NoSeam`."""
    # Most are found within a few tokens.
    for searched in SEARCHED:
        number, common = _common_tokens(pieces, tokens, searched)
        found, at = np.unique(number, return_index=True)
        if len(found) == len(pieces.starts) - 1:
            last = common[at]
            seams: NDArray[np.int64] = tokens.place[last] + tokens.length[last] + tokens.offset[1:].astype(np.int64)
            return seams
    piece = int(np.setdiff1d(np.arange(len(pieces.starts) - 1), found)[0])
    cut = int(pieces.starts[piece + 1])
    index = int(tokens.index_of(np.array([cut]), slice(piece, piece + 1))[0])
    raise NoSeam(cut - int(tokens.place[max(index - 1, 0)] + tokens.offset[piece]))


def _common_tokens(pieces: Pieces, tokens: _Tokens, searched: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens among the first bytes of a piece that the piece before has too: numbers of the pieces before, indices."""
    begin, end = pieces.starts[1:], pieces.starts[1:] + searched
    lower, upper = (np.minimum(tokens.index_of(at, slice(None, -1)), tokens.first[1:-1]) for at in (begin, end))
    before, number = _ranges(lower, upper)
    token_at = np.zeros(int(pieces.ends[-1]), dtype=np.int32)
    token_at[tokens.place[before] + tokens.offset[number]] = before
    first, last = tokens.first[1:-1], np.minimum(tokens.index_of(end, slice(1, None)), tokens.first[2:])
    own, number = _ranges(first, last)
    # Where the piece before has no token, there is 0, or what another piece has there.
    other = token_at[tokens.place[own] + tokens.offset[1:][number]]
    is_common = (other >= lower[number]) & (other < upper[number]) & (tokens.ids[other] == tokens.ids[own])
    return number[is_common], own[is_common]


def _ranges(lower: NDArray[np.int64], upper: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All numbers in these ranges, and the number of the range of each."""
    counts = upper - lower
    number = np.repeat(np.arange(len(counts)), counts)
    firsts = np.cumsum(counts) - counts
    return np.arange(len(number)) + (lower - firsts)[number], number
