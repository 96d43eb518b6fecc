"""Objects of the sandbox that chat templates meet in place of Jinja's or Python's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2.utils import Namespace


class PacedItems:
    """What a loop goes over; each round is a tick. Those of a short list are counted before the first."""

    __slots__ = ("_items", "_n_short", "_tick")

    def __init__(self, items: Iterable[Any], tick: Callable[[int], None], n_short: int) -> None:
        """`tick(n)` counts rounds; a list of up to `n_short` is a short one."""
        self._items = items
        self._tick = tick
        self._n_short = n_short

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        items = self._items
        if type(items) is list and len(items) <= self._n_short:
            self._tick(len(items))
            return iter(items)
        return self._counted(items)

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._tick(1)
            yield item


class TemplateNamespace(Namespace):
    """Jinja's, with members that are found without a call."""

    __getattribute__ = object.__getattribute__

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(dict(*args, **kwargs))

    def __setitem__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"<Namespace {self.__dict__!r}>"
