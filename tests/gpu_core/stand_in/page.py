"""Runs the Python of docs/gpu.md over the stand-in: python -m tests.gpu_core.stand_in.page, in a folder with its file.

Prints the comment and the value of every expression that has both.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
OPTIONS = "GpuOptions("
SMALL = "GpuOptions(size_classes_bytes=(4096,), contexts_per_class=6, max_documents=64, "
"""Contexts of the stand-in that are quick to set up."""


def main() -> None:
    """See the module."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    source = blocks[0].replace(OPTIONS, SMALL)
    lines, names, found = source.splitlines(), dict[str, Any](), []
    for node in ast.parse(source).body:
        code = str(ast.get_source_segment(source, node))
        if not isinstance(node, ast.Expr):
            exec(code, names)
            continue
        value = eval(code, names)
        comment = lines[int(node.end_lineno or 0) - 1][int(node.end_col_offset or 0) :].partition("#")[2]
        if comment and isinstance(value, int | bytes | tuple | dict | np.ndarray):
            found.append((comment.strip(), repr(value.tolist() if isinstance(value, np.ndarray) else value)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
