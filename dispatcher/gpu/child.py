"""How processes of this package are started: with this process's interpreter and import path."""

from __future__ import annotations

import sys

_PROGRAM = (
    "import runpy, sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_command(module: str) -> list[str]:
    """The command that runs a module; arguments follow."""
    return [sys.executable, "-c", _PROGRAM, "\n".join(sys.path), module]
