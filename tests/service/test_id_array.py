"""Ids as JSON arrays: what orjson would write, whoever writes them."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from service.id_array import IDS_PER_PIECE, array_json, ids_json

SOURCE = Path(__file__).resolve().parents[2] / "service" / "decimals.c"
Write = Callable[[bytes | memoryview], bytes]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """The writer of a compiled package, made here."""
    compiler, include = shutil.which("cc"), sysconfig.get_path("include")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    library = tmp_path_factory.mktemp("compiled") / "decimals.so"
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}", SOURCE, "-o", library],
        check=True,
        timeout=60,
    )
    spec = spec_from_file_location("decimals", library, loader=ExtensionFileLoader("decimals", str(library)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    write: Write = module.ids_json
    return write


@pytest.fixture(params=["as installed", "compiled"])
def write(request: pytest.FixtureRequest) -> Write:
    """Both writers."""
    compiled: Write = request.getfixturevalue("compiled") if request.param == "compiled" else ids_json
    return compiled


def check(write: Write, ids: NDArray[np.uint32]) -> None:
    """What a writer makes of ids is what orjson makes of numbers."""
    assert write(ids.tobytes()) == orjson.dumps(ids.tolist())


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, IDS_PER_PIECE - 1, IDS_PER_PIECE, IDS_PER_PIECE + 1, 40_000])
def test_any_number_of_ids(write: Write, n: int) -> None:
    """However many there are, they are one array."""
    check(write, (np.arange(n, dtype=np.uint64) * 2654435761 % 2**32).astype("<u4"))


def test_numbers_of_any_length(write: Write) -> None:
    """Each number of digits, and where it changes, alone and in a row."""
    near = {10**n + step for n in range(10) for step in (-2, -1, 0, 1, 2)} | {2**32 - 1, 123_456_789, 1_000_200_003}
    numbers = np.array(sorted(number for number in near if 0 <= number < 2**32), "<u4")
    check(write, numbers)
    for number in numbers:
        check(write, np.array([number], "<u4"))


def test_all_ids_of_a_vocabulary(write: Write) -> None:
    """Every number that is an id of some tokenizer."""
    check(write, np.arange(300_000, dtype="<u4"))


def test_ids_lie_where_they_lie(write: Write) -> None:
    """A view of somebody else's memory, at an odd address, is read; its memory stays as it is."""
    memory = bytearray(b"\x00" + np.arange(1000, dtype="<u4").tobytes())
    assert write(memoryview(memory)[1:]) == orjson.dumps(list(range(1000)))
    assert memory[1:] == np.arange(1000, dtype="<u4").tobytes()


def test_what_is_no_memory_is_refused(compiled: Write) -> None:
    """An error, and not a crash."""
    with pytest.raises(TypeError):
        compiled("1")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [0, 1, IDS_PER_PIECE, IDS_PER_PIECE + 1, 2 * IDS_PER_PIECE + 1])
def test_pairs(n: int) -> None:
    """Two numbers for each token, in as many pieces as it takes."""
    pairs = np.stack([np.arange(n, dtype=np.uint32), np.arange(n, dtype=np.uint32) + 1], axis=1)
    assert orjson.loads(array_json(pairs)) == pairs.tolist()
