"""Documents that came as UTF-8 and become text when somebody reads them: a GPU reads what came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class LateTexts(Sequence[str]):
    """Texts of valid UTF-8, each made once. Not for two threads at a time."""

    __slots__ = ("_texts", "utf8")

    def __init__(self, utf8: Sequence[bytes]) -> None:
        self.utf8 = utf8
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
            text = self._texts[index] = str(self.utf8[index], "utf-8")
        return text
