"""Runs the checks of a device over the stand-in: python -m tests.gpu_core.stand_in.run"""

from __future__ import annotations

import json
import sys

from gpu_core.options import GpuOptions
from tests.data import EMBEDDED, tokenizer_json
from tests.gpu_core.device_checks import Checker
from tests.gpu_core.device_data import Reference, window

TEXT = ("It's 12345 o'clock, d\u00e9j\u00e0 vu; \u4f60\u597d\u4e16\u754c\u3002\n\n  x = foo(bar)  \t" * 40).encode()
BATCHES = [
    [b""],
    [window(TEXT, 0, 60)],
    [TEXT],
    [window(TEXT, 0, 58 * k) for k in range(40)],
    [TEXT + b" " + TEXT],
    [b"x" * 600, b"fine"],
    [],
]


def main() -> int:
    """Prints what was checked; status 1 when something was wrong."""
    data = tokenizer_json(EMBEDDED)
    expected = Reference(data).ids_of_batches(BATCHES)
    found: dict[str, object] = {}
    wrong: list[str] = []
    for options in ({}, {"eager": True}, {"wait": "block"}, {"wait": "spin"}):
        sizes = (4096, 65536)
        checker = Checker("embedded", data, GpuOptions(size_classes_bytes=sizes, token_starts=True, **options))
        for batch, ids in zip(BATCHES, expected, strict=True):
            checker.check("texts", batch, ids)
        for batch in BATCHES[:5] if not options else BATCHES[2:4]:
            checker.check_other_ways(batch)
            checker.check_transfers(batch)
        found[str(options)] = [dict(checker.n_checked), dict(checker.needs_cpu), checker.description["device"]]
        wrong += checker.wrong
    print(json.dumps({"found": found, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
