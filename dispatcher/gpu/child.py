"""How processes of this package are started, and how they end: with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PROGRAM = (
    "import runpy, sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_PR_SET_PDEATHSIG = 1


def python_command(module: str) -> list[str]:
    """The command that runs a module with this process's interpreter and import path; arguments follow."""
    return [sys.executable, "-c", _PROGRAM, "\n".join(sys.path), module]


def end_with(parent: int) -> bool:
    """End this process when its parent does, however that ends; False when it has ended already.

    Linux sends the signal when the thread ends that started the process. Signals of the terminal are for the parent.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent
