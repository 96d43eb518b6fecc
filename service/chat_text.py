"""Text of a conversation as UTF-8, for chat templates that mostly pass it on.

Large bodies are UTF-8, and so is what a GPU reads. A `str` between the two is made and taken apart again one character
at a time where one is not ASCII, and two or four bytes wide meanwhile. So long texts of messages stay bytes:

    body ─► messages with `Utf8Text` ─► template ─► pieces of UTF-8 ─► one text

A template does with a `Utf8Text` exactly what it does with a `str`, or gets an exception, whatever it is; then the
conversation is rendered again from `str`. What is done here costs no look at single characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

MAX_PIECES = 64
"""A text of more pieces is joined: a template that glues a conversation together would copy long lists of them."""
MAX_BYTES = 128 << 20
"""A text over this may be over the bound on characters, which only `str` can tell."""

METHODS = frozenset({"startswith", "endswith", "split", "strip", "lstrip", "rstrip"})
"""What a template may call of a `Utf8Text`."""

_SPACE = bytes(code for code in range(128) if chr(code).isspace())


class NotOnUtf8(Exception):
    """What the template asks for takes a `str`."""


class Utf8Text:
    """A text as pieces, of valid UTF-8 mostly. Its public methods are those of `str` under the same names."""

    __slots__ = ("_pieces",)

    def __init__(self, *pieces: bytes | str) -> None:
        self._pieces: Sequence[bytes | str] = pieces

    def __bool__(self) -> bool:
        return any(self._pieces)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Utf8Text):
            return self._whole() == other._whole()
        return isinstance(other, str) and self._whole() == other.encode(errors="surrogatepass")

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, needle: object) -> bool:
        found, data = _encoded(needle), self._whole()
        return not found or (found[0] in data and found in data)

    def startswith(self, prefix: str | tuple[str, ...]) -> bool:
        """See `str`."""
        return self._whole().startswith(_each_encoded(prefix))

    def endswith(self, suffix: str | tuple[str, ...]) -> bool:
        """See `str`."""
        return self._whole().endswith(_each_encoded(suffix))

    def split(self, sep: str, maxsplit: int = -1) -> list[Utf8Text]:
        """See `str`; the separator must be given."""
        if not sep:
            raise NotOnUtf8
        return [Utf8Text(part) for part in self._whole().split(_encoded(sep), maxsplit)]

    def strip(self, chars: str | None = None) -> Utf8Text:
        """See `str`."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Utf8Text:
        """See `str`."""
        data = self._whole()
        stripped = data.lstrip(_stripped(chars))
        if chars is None and stripped[:1] > b"\x7f" and _decoded(stripped[:4])[:1].isspace():
            raise NotOnUtf8
        return self if stripped is data else Utf8Text(stripped)

    def rstrip(self, chars: str | None = None) -> Utf8Text:
        """See `str`."""
        data = self._whole()
        stripped = data.rstrip(_stripped(chars))
        if chars is None and stripped[-1:] > b"\x7f" and _decoded(stripped[-4:])[-1:].isspace():
            raise NotOnUtf8
        return self if stripped is data else Utf8Text(stripped)

    def __str__(self) -> NoReturn:
        raise NotOnUtf8

    def __repr__(self) -> NoReturn:
        raise NotOnUtf8

    def __len__(self) -> NoReturn:
        raise NotOnUtf8

    def __iter__(self) -> NoReturn:
        raise NotOnUtf8

    def __getitem__(self, index: Any) -> NoReturn:
        raise NotOnUtf8

    def __int__(self) -> NoReturn:
        raise NotOnUtf8

    def __float__(self) -> NoReturn:
        raise NotOnUtf8

    def _whole(self) -> bytes:
        pieces = self._pieces
        if len(pieces) == 1 and type(whole := pieces[0]) is bytes:
            return whole
        whole = _joined(pieces)
        self._pieces = (whole,)
        return whole


def utf8_of(texts: Iterable[str | Utf8Text]) -> bytes:
    """All texts end to end. Raises `NotOnUtf8` for more than `MAX_BYTES`, and `UnicodeEncodeError`."""
    return _joined(_pieces_of(texts))


def str_of(text: T | Utf8Text) -> T | str:
    """Anything, with a `str` in the place of a `Utf8Text`."""
    return str(text._whole(), "utf-8") if isinstance(text, Utf8Text) else text


def glued(texts: Iterable[str | Utf8Text]) -> Utf8Text:
    """The sum of texts. Raises `NotOnUtf8` for anything else."""
    pieces = _pieces_of(texts)
    return Utf8Text(*pieces) if len(pieces) <= MAX_PIECES else Utf8Text(_joined(pieces))


def pieces_or_sum(terms: Iterable[Any]) -> list[str] | Utf8Text | None:
    """The sum of texts if one is a `Utf8Text`, else the terms as a list; None where one is no text."""
    pieces: list[Any] = []
    is_utf8 = False
    for term in terms:
        kind = type(term)
        if kind is str:
            pieces.append(term)
        elif kind is Utf8Text:
            pieces += term._pieces
            is_utf8 = True
        else:
            return None
    if not is_utf8:
        return pieces
    return Utf8Text(*pieces) if len(pieces) <= MAX_PIECES else Utf8Text(_joined(pieces))


def joined(texts: Sequence[str | Utf8Text], separator: str = "") -> str | Utf8Text:
    """The same with a separator between texts; as `str` where all of them are."""
    if Utf8Text not in map(type, texts):
        return separator.join(texts)  # type: ignore[arg-type]
    return glued([part for text in texts for part in (separator, text)][1:])


def _pieces_of(texts: Iterable[str | Utf8Text]) -> list[bytes | str]:
    pieces: list[bytes | str] = []
    for text in texts:
        if type(text) is Utf8Text:
            pieces += text._pieces
        elif type(text) is str:
            pieces.append(text)
        else:
            # Subclasses of `str` may add themselves in a way of their own.
            raise NotOnUtf8
    return pieces


def _joined(pieces: Iterable[bytes | str]) -> bytes:
    parts = [piece if type(piece) is bytes else piece.encode() for piece in pieces]  # type: ignore[union-attr]
    if sum(map(len, parts)) > MAX_BYTES:
        raise NotOnUtf8
    return b"".join(parts)


def _encoded(text: object) -> bytes:
    """A `str` as UTF-8. No other type. Raises `UnicodeEncodeError` for a lone surrogate."""
    if not isinstance(text, str):
        raise NotOnUtf8
    return text.encode()


def _each_encoded(texts: str | tuple[str, ...]) -> bytes | tuple[bytes, ...]:
    return tuple(map(_encoded, texts)) if isinstance(texts, tuple) else _encoded(texts)


def _stripped(chars: str | None) -> bytes:
    """What is stripped, as bytes; bytes of characters outside ASCII would be stripped one by one."""
    if chars is None:
        return _SPACE
    if not (isinstance(chars, str) and chars.isascii()):
        raise NotOnUtf8
    return chars.encode()


def _decoded(data: bytes) -> str:
    return data.decode(errors="ignore")
