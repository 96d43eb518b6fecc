"""Text that is not in normal form, on a device: what a second replay there answers, against the reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import normalizers

from gpu_core.encoder import Encoder
from gpu_core.normal_form import passes_quick_check
from tests.gpu_core.device_data import Ids, Reference, windows

Batch = list[bytes]
PIECES = (
    *("a", "e", " ", "\n", "'s", "1", "<", ">", ".", "é", "中文", "한", "Z", "  ", "=", "x" * 40, "\r\n", "😀"),
    *("\u0301", "\u0323", "\u0338", "e\u0301", "a\u0323\u0301", "a\u0301\u0323", "A\u030a", "\u212b", "\u1100\u1161"),
    *("\u0958", "\u09bf", "\u09be", "\u0b95\u0bbe", "q\u0323", "ﬁ", "\u037e", "\u0344", "\u2126", "\U0001d15e"),
    *("\u0301" * 20, "\u1112\u1161\u11ab", "\u0915\u093c", "\u212a"),
)


def decomposed(text: bytes) -> bytes:
    """With every character that NFC puts together taken apart."""
    return normalizers.NFD().normalize_str(text.decode()).encode()


def random_marks(rng: random.Random, literals: list[bytes], n: int) -> bytes:
    """Marks, characters that compose or decompose, and added tokens, whole or in part."""
    parts = [piece.encode() for piece in rng.choices(PIECES, k=n)]
    for _ in range(rng.randrange(3) if literals else 0):
        literal = rng.choice(literals)
        cut = rng.choice((len(literal), rng.randrange(len(literal)) + 1))
        parts.insert(rng.randrange(len(parts) + 1), literal[:cut])
    return b"".join(parts)


@dataclass(frozen=True)
class Amount:
    """How much is checked."""

    sizes: tuple[int, ...]
    """Bytes of windows before they are decomposed."""
    n_many: int
    """Documents of a batch of many."""
    n_texts: int
    longest: int
    """Pieces of a random text."""


AMOUNTS = {
    "least": Amount((900, 4000), 20, 20, 60),
    "short": Amount((1, 64, 700, 768, 769, 4000, 20_000), 50, 100, 900),
    "full": Amount((1, 7, 64, 640, 767, 768, 769, 1025, 4000, 20_000, 65_000, 250_000, 1_000_000), 50, 3000, 900),
}


def normal_batches(
    rng: random.Random, corpora: list[bytes], literals: list[bytes], amount: Amount
) -> list[tuple[str, Batch]]:
    """Windows as they are and decomposed, one among many that are not, random texts; in random order."""
    found: list[tuple[str, Batch]] = []
    for text in corpora:
        for size in amount.sizes:
            (piece,) = windows(rng, text, [size])
            found += [("decomposed", [decomposed(piece)]), ("as it is", [piece])]
        many = windows(rng, text, [rng.randrange(300) for _ in range(amount.n_many)])
        found.append(("many decomposed", [decomposed(piece) for piece in many]))
        many[rng.randrange(len(many))] = decomposed("Café, ấ 한글".encode())
        found.append(("one among many", many))
        found.append(("empty ones between", [b"", decomposed(windows(rng, text, [700])[0]), b"", b"e\xcc\x81", b""]))
    lengths = (2, 9, 60, amount.longest)
    for _ in range(amount.n_texts // 10):
        found.append(("random marks", [random_marks(rng, literals, rng.choice(lengths)) for _ in range(10)]))
    # The smallest class has no room for its normal form.
    found.append(("a full batch that grows", [b"plain words " * 170, "\u0958 ".encode() * 450, b"e\xcc\x81" * 85]))
    found.append(("a border cuts a character", [b"e\xcc", b"\x81a\xcc\x81", b"\xcc\x81"]))
    rng.shuffle(found)
    return found


def expected_ids(reference: Reference, batches: list[tuple[str, Batch]]) -> list[list[Ids | None]]:
    """The reference's ids of every document; None for one that is no UTF-8."""
    texts = [[_readable(document) for document in batch] for _name, batch in batches]
    ids = iter(reference.ids_of_batches([[text for text in batch if text is not None] for batch in texts]))
    rows = [iter(next(ids)) for _ in texts]
    return [[None if text is None else next(row) for text in batch] for batch, row in zip(texts, rows, strict=True)]


class SecondReplays:
    """Batches through calls that try again on the device only."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.n_checked: Counter[str] = Counter()
        """Documents that the second replay was needed for count as `second replay`, the others as `beside those`."""
        self.left: Counter[str] = Counter()
        self.wrong: list[str] = []

    def check(self, name: str, batch: Batch, expected: Sequence[Ids | None]) -> None:
        """Packed and resident: every document is equal, or left with a reason."""
        packed = self.encoder.encode_packed(b"".join(batch), np.cumsum([0, *map(len, batch)]))
        assert packed.ids is not None
        ids, tokens = packed.ids.copy(), packed.document_tokens.copy()
        for i, document in enumerate(batch):
            if i in packed.needs_cpu:
                self.left[f"{name}: {packed.needs_cpu[i]}"] += 1
                continue
            is_normal = passes_quick_check(document.decode(errors="replace"))
            self.n_checked["beside those" if is_normal else "second replay"] += 1
            right = expected[i]
            if right is None or not np.array_equal(ids[tokens[i] : tokens[i + 1]], right):
                self.wrong.append(f"second replay, {name}: document {i} of {len(batch)} ({len(document)} bytes)")
        packed.release()
        self._check_resident(name, batch, ids, tokens)

    def check_at_once(self, name: str, batch: Batch, expected: Sequence[Ids | None]) -> None:
        """Again and again, until such text is brought into normal form without a first replay; also as decimals."""
        n_bytes, starts = sum(map(len, batch)), np.cumsum([0, *map(len, batch)])
        lease = self.encoder.lease(n_bytes, len(batch))
        context: Any = lease.context
        context.text[:n_bytes], context.document_starts[: len(starts)] = b"".join(batch), starts
        for turn in range(8):
            before = context.epoch
            encoding = self.encoder.replay(lease, n_bytes, len(batch), decimals=turn % 4 == 3)
            self.n_checked["at once"] += context.in_normal_form and context.epoch == before + 1
            for i, right in enumerate(expected):
                if i in encoding.needs_cpu:
                    continue
                ids = encoding.ids(i)
                decimals = encoding.decimals(i)
                text = ",".join(map(str, ids.tolist())).encode()
                if right is None or not np.array_equal(ids, right) or (decimals is not None and decimals != text):
                    self.wrong.append(f"at once, {name}: document {i} of {len(batch)}, turn {turn}")
        lease.release()

    def _check_resident(self, name: str, batch: Batch, ids: Ids, tokens: Ids) -> None:
        """Resident results are all those of the packed ones, answered or not."""
        resident: Any = self.encoder.encode_resident(batch)
        self.n_checked["resident"] += len(batch)
        n = int(tokens[-1])
        same = resident.n_tokens == n and np.array_equal(resident.ids.get(), ids[:n])
        if not same or not np.array_equal(resident.document_tokens.get(), tokens):
            self.wrong.append(f"second replay, resident, {name}: {len(batch)} documents")
        resident.release()


def _readable(document: bytes) -> bytes | None:
    try:
        document.decode()
    except UnicodeDecodeError:
        return None
    return document
