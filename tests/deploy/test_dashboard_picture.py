"""The picture of the dashboard: every panel is drawn, and those with nothing to show are named."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from tests.deploy.dashboard_picture import BOARD, UNITS, Series, draw


def test_every_panel_is_drawn(tmp_path: Path) -> None:
    """Lines, areas and heat maps of each unit; a panel without a finite value is one of the empty ones."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    empty, unknown, *full = panels
    lines = {
        panel["id"]: [
            Series(bound, {"le": bound}, [0.0, 1.0], [i, 2.0 * i]) for i, bound in enumerate(("1", "2", "+Inf"), 1)
        ]
        for panel in full
    }
    lines |= {empty["id"]: [], unknown["id"]: [Series("", {"le": "+Inf"}, [0.0], [float("nan")])]}
    path = tmp_path / "board.png"
    assert draw(board, lines, path) == [empty["title"], unknown["title"]]
    with Image.open(path) as picture:
        assert picture.height > picture.width > 1000


def test_values_are_written_in_their_units() -> None:
    """Three digits and the largest unit that fits."""
    assert [UNITS["s"](value) for value in (0, 2.5e-4, 0.02, 1.5)] == ["0", "250 us", "20 ms", "1.5 s"]
    assert [UNITS["bytes"](value) for value in (1, 2048, 3 << 30)] == ["1 B", "2 KiB", "3 GiB"]
    assert UNITS["reqps"](1500) == "1.5 K req/s"
