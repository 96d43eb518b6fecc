"""Writes docs/capacity.md from the results in docs/results; with --check only says whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "capacity.md"
RESULTS = ROOT / "docs" / "results"
sys.path.insert(0, str(ROOT))

from loadtest.capacity_page import page  # noqa: E402
from loadtest.result import read_result  # noqa: E402


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    wanted = page({path.name: read_result(path) for path in sorted(RESULTS.glob("*.json"))})
    if not arguments.check:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print("docs/capacity.md is not what docs/results say; run scripts/make_capacity_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
