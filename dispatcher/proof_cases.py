"""The texts on which an engine must agree with the reference before it may serve a tokenizer.

Bounded and deterministic: they follow from the spec, the vocabulary and `data/proof_text.txt` alone. Each family of
cases exists because engines were seen, or are likely, to differ there.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from itertools import product

from gpu_core.spec import AddedToken, TokenizerSpec

Cases = Iterator[str]
Decode = Callable[[list[list[int]]], list[str]]
"""Texts of sequences of ids, by the reference."""

REPRESENTATIVES = (
    *"aB\u00e9\u00df\u01c5\u02b0\u05d0\u6f22\u3042\u30ab\u30fc\ud55c\u0301\u0903\u20dd",
    *"1\u0663\u00b2\u2167\u00bd!'\u2019_-$+^\u20ac/\u00b0\U0001f600<.\"(\u2581\u0120",
    *" \u00a0\u3000\t\n\r\x0b\x85\u2028\x00\x1f\u200b\ue000\u0378\u017f\u212a\u0130",
)
"""One or more characters of every class that a pattern family tells apart."""
CORE = "aB\u00e9\u6f22\u03011\u00b2!'\U0001f600 \n\r\t\u00a0"
"""The classes between which most rules look further than one character."""
RUNS = (63, 64, 65, 512, 513)
LONG_RUN = 10_000
MAX_OVERLAPS = 2_000
N_VOCABULARY_CASES = 6_000
N_RANDOM_CASES = 3_000
CODE_POINT_STRIDE = 7


def proof_cases(spec: TokenizerSpec, decode: Decode) -> Iterator[tuple[str, str]]:
    """Pairs of a case family's name and a text."""
    families: tuple[tuple[str, Cases], ...] = (
        ("real text", _real_text()),
        ("added tokens", _added_tokens(spec.added_tokens)),
        ("overlapping added tokens", _overlaps(spec.added_tokens)),
        ("character classes", _classes()),
        ("contractions", _contractions()),
        ("white space", _white_space()),
        ("digit runs", _digits()),
        ("long runs", _runs()),
        ("normalization", _normalization(spec.added_tokens)),
        ("vocabulary", _vocabulary(spec, decode)),
        ("code points", _code_points()),
        ("random mixtures", _random(spec.added_tokens)),
    )
    for name, cases in families:
        for text in cases:
            yield name, text


def real_text() -> list[str]:
    """Paragraphs in about 40 languages, mathematics, emoji, and code in several languages."""
    text = files("dispatcher").joinpath("data", "proof_text.txt").read_text(encoding="utf-8")
    return text.rstrip("\n").split("\n\n")


def _real_text() -> Cases:
    paragraphs = real_text()
    yield from paragraphs
    yield "\n\n".join(paragraphs)
    yield "\r\n".join(paragraphs)
    yield " ".join(reversed(paragraphs)).upper()
    for paragraph in paragraphs:
        # Every length of a cut-off document once.
        for end in range(1, 40):
            yield paragraph[:end]


def _added_tokens(tokens: tuple[AddedToken, ...]) -> Cases:
    """Every literal glued to text on both sides; all contexts for few tokens, the main ones for thousands."""
    contexts: tuple[str, ...] = ("a{}b", " {} ", "1{0}{0}\n", "\u00e9{}'s")
    if len(tokens) <= 2_000:
        contexts += ("{}", "\n{}\n", "!{}!", "\u6f22{}\u6f22", "'{}'", "\u00a0{}\u00a0", "  {}  ", "{}\u0338", "\t{}1")
    for token in tokens:
        for context in contexts:
            yield context.format(token.content)
        yield f"x{token.content[:-1]} {token.content[1:]}y"
        if token.content.upper() != token.content:
            yield f"a{token.content.upper()}b"


def _overlaps(tokens: tuple[AddedToken, ...]) -> Cases:
    """Literals that share characters, or of which one is a part of the other: who is found first?"""
    by_first: dict[str, list[str]] = {}
    for token in tokens:
        by_first.setdefault(token.content[0], []).append(token.content)
    n = 0
    for token in tokens:
        for start in range(1, len(token.content)):
            tail = token.content[start:]
            for other in by_first.get(tail[0], ())[:64]:
                if other.startswith(tail) and n < MAX_OVERLAPS:
                    yield f"a{token.content}{other[len(tail) :]}b"
                    n += 1


def _classes() -> Cases:
    yield ""
    yield from REPRESENTATIVES
    for pair in product(REPRESENTATIVES, repeat=2):
        yield "".join(pair)
        yield f"x{pair[0]}{pair[1]}y"
    for triple in product(CORE, repeat=3):
        yield "".join(triple)
    for quadruple in product("a\u00e91!' \n", repeat=4):
        yield "".join(quadruple)


def _contractions() -> Cases:
    suffixes = [*"stmdSTlrkK", "re", "ve", "ll", "RE", "Ve", "lL", "\u017f", "\u017fe", "\u212a"]
    befores = ("", *"aZ1 !\n\u00e9\u6f22")
    for apostrophe, suffix in product(("'", "\u2019", "''"), suffixes):
        for before, after in product(befores, ("", "a", " ", "1", "'s")):
            yield f"{before}{apostrophe}{suffix}{after}"


def _white_space() -> Cases:
    kinds = (" ", "\n", "\r", "\t", "\u00a0", "\u3000", "\u2028", "\x85", "\u200b", "\ufeff")
    for length in (1, 2, 3):
        for run in map("".join, product(kinds, repeat=length)):
            yield f"a{run}b"
            yield f"{run}!"
            yield f"1{run}"
    for n in range(4, 40):
        yield f"a{' ' * n}b{' ' * n}"
        yield f"{' ' * n}\n{' ' * n}\n\n{' ' * n}x"
        yield f"\t{' ' * n}return"


def _digits() -> Cases:
    for digit, n in product("1\u0663\uff11\u00b2\u00bd\u2167\u0e51\U0001d7d8", range(1, 20)):
        yield digit * n
        yield f"a{digit * n}.{digit * n}b"
    yield from ("3.14159e-10", "1,234,567.89", "0x1F4A9", "v1.2.3-rc4", "12:34:56", "\u0661123\u00b2", "1st 2nd")


def _runs() -> Cases:
    for character, n in product(REPRESENTATIVES, RUNS):
        yield character * n
    for n in RUNS:
        yield f"x{'ab' * n} {'Ab' * n}1"
        yield "\n ".join("x" for _ in range(n))
    for character in "a=. \n\t1\u00e9\u6f22\U0001f600\u0301":
        yield character * LONG_RUN
    yield "\n ".join("" for _ in range(LONG_RUN))
    yield "abcdefghij" * (LONG_RUN // 10)


def _normalization(tokens: tuple[AddedToken, ...]) -> Cases:
    """Texts that NFC, NFKC and others change, and marks that would combine with the end of an added token."""
    pieces = (
        "e\u0301", "\u00e9", "\u1e0b\u0323", "q\u0307\u0323", "\u0344", "\u212b", "\u2126", "\u212a", "\u0958",
        "\u2adc", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u1100\uac00", "\ufb01", "\uff21\uff11", "\u3392",
        "\u0cc6\u0cc2\u0cd5", "\u09c7\u09be", "\u0b47\u0b56", "\u1b06", "\u0f73\u0f71", "\u03b1\u0313\u0300\u0345",
        "\U0001d15e", "\u2260", "=\u0338", "a\u0327\u0301\u0323\u031b\u0300", "\u05d0\u05bc\u05b7", "\u0627\u0653",
        "\u30ab\u3099", "\ufa1e", "\uf900", "\u00bd",
    )  # fmt: skip
    for piece in pieces:
        yield piece
        yield f"a{piece}b {piece}'s 1{piece}"
        yield f"{piece}\u0301\n\u0323{piece}"
    for left, right in product(pieces, repeat=2):
        yield left + right
    for paragraph in real_text():
        yield unicodedata.normalize("NFD", paragraph)
        yield unicodedata.normalize("NFKC", paragraph)
    for token in tokens[:500]:
        yield f"a{token.content}\u0338\u0301"
        yield f"\u0301{unicodedata.normalize('NFD', token.content)}b"


def _vocabulary(spec: TokenizerSpec, decode: Decode) -> Cases:
    """Entries of the vocabulary, alone and in rows: merges, and entries that merging does not reach."""
    step = max(1, spec.vocab_size // N_VOCABULARY_CASES)
    entries = decode([[i] for i in range(0, spec.vocab_size, step)])
    yield from entries
    for i in range(0, len(entries), 8):
        yield "".join(entries[i : i + 8])
        yield " ".join(entries[i : i + 8])


def _code_points() -> Cases:
    """Code points of every block, many in one text."""
    code_points = [c for c in range(1, 0x32400, CODE_POINT_STRIDE) if not 0xD800 <= c < 0xE000]
    for context in ("a{}b ", "1{}'s\n", "!{} "):
        for i in range(0, len(code_points), 64):
            yield "".join(context.format(chr(c)) for c in code_points[i : i + 64])


def _random(tokens: tuple[AddedToken, ...]) -> Cases:
    rng = random.Random(20_250_101)
    literals = [token.content for token in tokens]
    words = " ".join(real_text()).split(" ")
    units: Iterable[str] = (*REPRESENTATIVES, *"tsre", "'s", "'ll", "  ", "\r\n", "e\u0301", "...", "123", "==")
    pool = [*units, *rng.sample(words, 60), *rng.sample(literals, min(len(literals), 20))]
    for _ in range(N_RANDOM_CASES):
        yield "".join(rng.choices(pool, k=rng.randint(2, 24)))
