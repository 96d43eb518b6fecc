"""`sidetok` whose pace a test sets: python -m tests.end_to_end.held_service CONSTANTS serve FLAG ...

CONSTANTS is a JSON object of constants of the product by module and name, and the values that they get: times that a
test must not miss, be the machine as busy as it may. The models load when there is no file `hold-load` in the working
directory, and a document `until PATH` is encoded when there is a file of that name.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.tokenizer import Tokenizer
from service.cli import main
from service.registry import Registry

HOLD_LOAD = "hold-load"
UNTIL = "until "
LOOK_S = 0.005


def set_constants(values: dict[str, Any]) -> None:
    """Give constants other values; each must be there."""
    for name, value in values.items():
        module, _, constant = name.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, constant), name
        setattr(found, constant, value)


def hold() -> None:
    """Let the load, and documents that say so, wait for files."""
    encode, load_all = Tokenizer.encode, Registry.load_all

    def held_encode(self: Tokenizer, documents: Sequence[str], options: EncodeOptions) -> list[EncodedDocument]:
        for document in documents:
            if document.startswith(UNTIL):
                _wait(Path(document.removeprefix(UNTIL)).exists)
        return encode(self, documents, options)

    def held_load_all(self: Registry, *around: Any) -> None:
        _wait(lambda: not Path(HOLD_LOAD).exists())
        load_all(self, *around)

    patched: Any = Tokenizer
    patched.encode = held_encode
    patched = Registry
    patched.load_all = held_load_all


def _wait(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(LOOK_S)


if __name__ == "__main__":
    set_constants(json.loads(sys.argv[1]))
    hold()
    sys.exit(main(sys.argv[2:]))
