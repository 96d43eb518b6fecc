"""Documents that came as UTF-8 and become text when somebody reads them: a GPU reads what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from dispatcher.errors import InvalidText


def decoded(utf8: bytes | memoryview, name: str) -> str:
    """The text of a document. Raises `InvalidText` that names it."""
    try:
        return str(utf8, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidText(f"`{name}` is not UTF-8: byte {error.start} cannot stand there.") from None


class LateTexts(Sequence[str]):
    """Texts, each made once. Not for two threads at a time."""

    __slots__ = ("_name_of", "_texts", "utf8")

    def __init__(
        self, utf8: Sequence[bytes | memoryview], name_of: Callable[[int], str] = lambda i: f"text {i}"
    ) -> None:
        """What is no UTF-8 raises `InvalidText` when it is to become text; a GPU leaves it. `name_of` is for that."""
        self.utf8 = utf8
        self._name_of = name_of
        self._texts: list[str | None] = [None] * len(utf8)

    def __len__(self) -> int:
        return len(self.utf8)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        text = self._texts[index]
        if text is None:
            text = self._texts[index] = decoded(self.utf8[index], self._name_of(index))
        return text
