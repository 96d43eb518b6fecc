"""Promises of dispatcher.offsets."""

from __future__ import annotations

import numpy as np
import pytest

from dispatcher.offsets import byte_offsets


@pytest.mark.parametrize(
    "text", ["", "plain", "\u007f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff", "a\u00e9\u6f22\U0001f600b"]
)
def test_spans_hold_the_same_text(text: str) -> None:
    """Every span of characters becomes the span of their UTF-8."""
    spans = [(i, j) for i in range(len(text) + 1) for j in range(i, len(text) + 1)]
    chars = np.array(spans, dtype=np.uint32).reshape(-1, 2)
    result = byte_offsets(text, chars)
    assert result.dtype == np.uint32
    data = text.encode()
    assert [data[a:b].decode() for a, b in result.tolist()] == [text[i:j] for i, j in spans]
