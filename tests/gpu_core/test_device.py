"""The device module over a stand-in for CuPy: memory layout, capture, replay, transfers, results, without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_core.shim import compiler

HERE = Path(__file__).parent


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_contexts_over_the_stand_in(shim_cache: Path) -> None:
    """Every way in and out gives the reference's ids, as a graph and without one, in every wait mode."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "stand_in"), str(HERE.parents[1])])
    environment["SHIM_CACHE"] = str(shim_cache)
    command = [sys.executable, "-m", "tests.gpu_core.stand_in.run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["found"].pop("decode") > 1000
    characters, needs_cpu = report["found"].pop("characters")
    assert (characters["texts"], characters["other ways"], needs_cpu) == (42, 1, {})
    second, left = report["found"].pop("second replays")
    assert second["second replay"] > 40
    assert second["at once"] > 12
    assert second["beside those"] > 20
    assert left.pop("a border cuts a character: invalid UTF-8") == 2
    assert left.pop("a full batch that grows: text that is not in normal form") == 2
    assert sum(left.values()) <= 2
    assert len(report["found"]) == 4
    for checked, needs_cpu, device in report["found"].values():
        assert device == "stand-in"
        assert checked["texts"] == 51
        assert checked["transfers"] >= 4
        assert checked["other ways"] > 0
        assert checked["packed"] > 0
        assert checked["decimals"] > 0
        assert list(needs_cpu.values()) == [1]
