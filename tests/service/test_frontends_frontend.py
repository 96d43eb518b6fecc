"""What one of several frontends tells of itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from service.frontends.frontend import Frontend


@pytest.mark.parametrize("has_news", [True, False])
def test_a_report_is_of_this_moment(has_news: bool) -> None:
    """Requests whose answers workers sent are settled before the figures are collected."""
    order: list[Any] = []

    async def in_background(collect: Any) -> Any:
        return collect()

    def collect() -> list[Any]:
        order.append("collected")
        return []

    frontend: Any = Frontend.__new__(Frontend)
    dispatcher = SimpleNamespace(has_news=has_news, deliver=lambda: order.append("delivered"))
    metrics = SimpleNamespace(collect=collect)
    frontend._service = SimpleNamespace(dispatcher=dispatcher, metrics=metrics, in_background=in_background)
    frontend._channel = SimpleNamespace(send=lambda *message: order.append(message))
    asyncio.run(frontend._report(7))
    assert order == [*["delivered"] * has_news, "collected", ("report", [7, []])]
