"""The page of the GPU core: its example gives what its comments say, over a stand-in for CuPy."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_core.shim import compiler
from tests.data import families, tokenizer_json

HERE = Path(__file__).parent


@pytest.mark.skipif(compiler() is None or "qwen3" not in families(), reason="needs a C++ compiler and Qwen3's file")
def test_the_example_gives_what_its_comments_say(shim_cache: Path, tmp_path: Path) -> None:
    """Each comment behind an expression begins with its value; lists of ids stand there as arrays."""
    (tmp_path / "qwen3").mkdir()
    (tmp_path / "qwen3" / "tokenizer.json").write_bytes(tokenizer_json("qwen3"))
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "stand_in"), str(HERE.parents[1])])
    environment["SHIM_CACHE"] = str(shim_cache)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_core.stand_in.page"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    said = [re.sub(r"array\((\[[^]]*\])(, dtype=uint32)?\)", r"\1", comment) for comment, _ in found]
    assert [comment[: len(value)] for comment, (_, value) in zip(said, found, strict=True)] == [v for _, v in found]
    assert len(found) == 9
