"""What `pyproject.toml` cannot say: with SIDETOK_COMPILE=1, modules that every document passes are compiled by mypyc.

    SIDETOK_COMPILE=1 pip install .          needs a C compiler; the same sources, and half of their CPU time

Without it the package is plain Python.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup

COMPILED = (
    *(f"dispatcher/{name}.py" for name in ("finisher", "group_call")),
    *(f"dispatcher/gpu/{name}.py" for name in ("account", "batch", "driver", "group", "incarnation", "local_link")),
    *(f"dispatcher/gpu/{name}.py" for name in ("model_queue", "results", "route", "route_tally", "staging")),
)
"""Nobody derives from their classes, replaces what is in them, or asks whether a text `is` another one: compiled, it
would not do what it did."""
NEEDS = ["mypy>=2.4,<3", "numpy<2.5"]
"""As in extra `dev`."""


def extensions() -> list[Extension]:
    """What is compiled."""
    from mypyc.build import mypycify

    # Libraries that ship no types, or are not there while this is built, say nothing.
    return list(mypycify(["--ignore-missing-imports", *COMPILED], debug_level="0", group_name="sidetok"))


if os.environ.get("SIDETOK_COMPILE") != "1":
    setup()
elif "egg_info" in sys.argv:  # pip asks what is needed, and brings it
    setup(setup_requires=NEEDS)
else:
    setup(ext_modules=extensions())
