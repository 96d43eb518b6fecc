"""Plain twin for SentencePiece-style BPE: added tokens, bridge cuts, lookup, merges one at a time. For tests.

text          the_cat\\n        `\\n` is an added token, `_` is the normalizer's blank
neighbours    t-h-e-_ | c-a-t    joined where a rule's left part ends and its right part begins so
components    the_, cat          whole entries are looked up, the others merged
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import cached_property

from gpu_core.bridge_tables import closed_strings
from gpu_core.character_bpe import BLANK, CharacterBpe
from gpu_core.layout import MAX_PRETOKEN
from gpu_core.literals import NEEDS_CPU
from gpu_core.plain_merge import merge
from gpu_core.run_literals import RunLiteral
from gpu_core.twin import TwinResult, longest_matches

Joins = Callable[[str, str], bool]
"""Whether a token may lie across two neighbours. It may say so too often: a component is only larger then."""
Spelling = list[tuple[int, str]]
"""Characters of normalized text, each with the byte position of what it stands for."""


class BridgeTwin:
    """One tokenizer."""

    def __init__(
        self,
        model: CharacterBpe,
        runs: list[RunLiteral],
        literals: dict[bytes, int],
        joins: Joins | None = None,
        max_bytes: int = MAX_PRETOKEN,
        blanks: RunLiteral | None = None,
    ) -> None:
        """`joins`: the exact pairs by default. A longer component than `max_bytes` sends its document to the CPU.

        `blanks`: runs of plain spaces that are components by themselves, see `gpu_core.blank_runs`.
        """
        self.model, self.literals, self.max_bytes, self.blanks = model, literals, max_bytes, blanks
        self.joins = joins or (lambda x, y: (x, y) in model.joined_pairs)
        self.runs = {run.character: run for run in runs}
        self.rules = model.rules.by_pair()
        self.run_pattern = re.compile("|".join(re.escape(run.character) + "+" for run in runs) or r"(?!)")

    @cached_property
    def closed(self) -> dict[str, int]:
        """Entries that merging reaches, in normalized spelling."""
        return closed_strings(self.model)

    def encode(self, document: bytes) -> TwinResult:
        """All stages on one document."""
        try:
            document.decode()
        except UnicodeDecodeError:
            return TwinResult([], [], True)
        found = self.find_literals(document)
        needs_cpu = any(i & NEEDS_CPU for _at, _length, i in found)
        needs_cpu |= any(a + length > b for (a, length, _i), (b, _length, _j) in itertools.pairwise(found))
        if needs_cpu:
            return TwinResult([], [], True)
        tokens: list[tuple[int, int]] = []
        end = 0
        for at, length, i in [*found, (len(document), 0, -1)]:
            components = list(self.components(document, end, at))
            begins = [component[0][0] for component in components]
            if any(b - a > self.max_bytes for a, b in itertools.pairwise([*begins, at])):
                return TwinResult([], [], True)
            tokens += [token for component in components for token in self.encode_component(component)]
            tokens += [(at, i)] if length else []
            end = at + length
        return TwinResult([i for _at, i in tokens], [at for at, _i in tokens], False)

    def starts(self, document: bytes) -> list[int]:
        """First bytes of the added tokens and of the components of a valid document."""
        starts: list[int] = []
        end = 0
        for at, length, _id in [*self.find_literals(document), (len(document), 0, -1)]:
            starts += [component[0][0] for component in self.components(document, end, at)]
            starts += [at] if length else []
            end = at + length
        return starts

    def find_literals(self, document: bytes) -> list[tuple[int, int, int]]:
        """(position, length, id) of the pieces of runs, and of the longest other added token at each byte."""
        found = [(at, n, self.literals[document[at : at + n]]) for at, n in longest_matches(document, self.literals)]
        text, at, seen = document.decode(), 0, 0
        for match in self.run_pattern.finditer(text):
            at += len(text[seen : match.start()].encode())
            run, seen = self.runs[match[0][0]], match.start()
            begin = at
            for piece in run.pieces(len(match[0])):
                length = piece * len(run.character.encode())
                found.append((begin, length, run.ids[piece - run.shortest]))
                begin += length
        return sorted(found)

    def components(self, document: bytes, begin: int, end: int) -> Iterator[Spelling]:
        """The text between two added tokens, normalized and cut wherever no rule can join the neighbours."""
        spelling = _spelling(document[begin:end].decode(), begin)
        if self.model.prepends and spelling:
            spelling.insert(0, (begin, BLANK))
        borders = self.blank_borders(document, begin, end)
        first = 0
        for at in range(1, len(spelling) + 1):
            is_end = at == len(spelling) or spelling[at][0] in borders
            if is_end or not self.joins(spelling[at - 1][1], spelling[at][1]):
                yield spelling[first:at]
                first = at

    def blank_borders(self, document: bytes, begin: int, end: int) -> set[int]:
        """Where the tokens of runs of plain spaces begin and end."""
        borders: set[int] = set()
        if self.blanks is None:
            return borders
        for match in re.finditer(b"  +", document[begin:end]):
            at, behind, raw = begin + match.start(), begin + match.end(), BLANK.encode()
            if document[:at].endswith(raw):
                continue
            for piece in self.blanks.pieces(behind - at):
                if piece < self.blanks.longest and document[behind:].startswith(raw):
                    break
                borders |= {at, at + piece}
                at += piece
        return borders

    def encode_component(self, component: Spelling) -> list[tuple[int, int]]:
        """(position, id) of each token: the whole component if it is a closed entry, else what the merges leave."""
        content = "".join(char for _at, char in component)
        if content in self.closed:
            return [(component[0][0], self.closed[content])]
        symbols: list[tuple[int, int]] = []
        for at, char in component:
            if char in self.model.characters:
                symbols.append((at, self.model.characters[char]))
            else:
                symbols += [(at + n, int(self.model.byte_ids[byte])) for n, byte in enumerate(char.encode())]
        return merge(symbols, self.rules)


def _spelling(text: str, at: int) -> Spelling:
    spelling = []
    for char in text:
        spelling.append((at, BLANK if char == " " else char))
        at += len(char.encode())
    return spelling
