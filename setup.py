"""What `pyproject.toml` cannot say: with SIDETOK_COMPILE=1, modules that every document passes are compiled by mypyc.

    SIDETOK_COMPILE=1 pip install .          needs a C compiler; the same sources, and less of their CPU time

So are what writes ids as JSON in the place of orjson (`service/decimals.c`), and the short way of a long text
(`dispatcher/gpu/native_way.c`). Without it the package is plain Python.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup

COMPILED = (
    *(f"dispatcher/{name}.py" for name in ("admission", "backlog", "bell", "dispatcher", "finisher", "flow_queue")),
    *(f"dispatcher/{name}.py" for name in ("group_call", "meter", "router", "shares", "tally", "work_queue", "worker")),
    "dispatcher/engines/piecewise_engine.py",
    *(f"dispatcher/gpu/{name}.py" for name in ("account", "batch", "driver", "group", "incarnation", "local_link")),
    *(
        f"dispatcher/gpu/{name}.py"
        for name in (
            "local_place",
            "model_queue",
            "results",
            "route",
            "route_tally",
            "short_way",
            "short_ways",
            "staging",
        )
    ),
    *(f"service/{name}.py" for name in ("endpoint", "gate", "head", "hot_cycle", "http_answer", "meter", "outlet")),
    "service/turn.py",
)
"""Nobody derives from their classes, replaces what is in them, refers to them weakly, or asks whether a text `is`
another one: compiled, it would not do what it did. Nor does a name with a type get a value of another."""
NEEDS = ["mypy>=2.4,<3", "numpy<2.5"]
"""As in extra `dev`."""


def extensions() -> list[Extension]:
    """What is compiled."""
    from mypyc.build import mypycify

    # Libraries that ship no types, or are not there while this is built, say nothing, and `scripts/check` judges types.
    options = ["--config-file=", "--explicit-package-bases", "--ignore-missing-imports", "--follow-imports=silent"]
    compiled = mypycify([*options, *COMPILED], debug_level="0", group_name="sidetok")
    return [Extension("service.decimals", ["service/decimals.c"]), native_way(), *compiled]


def native_way() -> Extension:
    """The short way of a long text."""
    import numpy

    sources = [f"dispatcher/gpu/{name}.c" for name in ("native_way", "native_module", "native_ending")]
    depends = ["dispatcher/gpu/native_way.h"]
    return Extension("dispatcher.gpu.native_way", sources, include_dirs=[numpy.get_include()], depends=depends)


if os.environ.get("SIDETOK_COMPILE") != "1":
    setup()
elif "egg_info" in sys.argv:  # pip asks what is needed, and brings it
    setup(setup_requires=NEEDS)
else:
    setup(ext_modules=extensions())
