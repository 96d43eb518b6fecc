"""The engine's program as it is: over the kernels on the host, and after the death of its parent."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.gpu.engine_process import EXIT_PERMANENT
from dispatcher.gpu.messages import Fault, Hello, Loaded
from dispatcher.gpu.process_link import ProcessLink
from gpu_core.options import GpuOptions
from gpu_core.shim import compiler
from tests.engine_rig import (
    LIMIT_S,
    OPTIONS,
    completions,
    engine_command,
    is_alive,
    launch,
    mixed_batch,
    model,
    tables_fd,
    until,
    wrong_documents,
)

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests" / "gpu_core" / "stand_in"
PARENT = """
import json, sys
from dispatcher.gpu.process_link import ProcessLink
from gpu_core.options import GpuOptions
link = ProcessLink(GpuOptions(size_classes_bytes=(4096,)), json.loads(sys.argv[1]))
link.start()
link.next_report()
print(link.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_the_program_over_the_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real program, with a stand-in for CuPy, gives the reference's ids for two replays at a time."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("SHIM_CACHE", str(tmp_path))
    link = ProcessLink(GpuOptions(size_classes_bytes=(4096, 16384)))
    try:
        link.start()
        assert link.next_report() == Hello(1, 1 << 30, 1 << 30, "stand-in")
        link.load(model("split_bpe").key, tables_fd("split_bpe"))
        loaded = link.next_report()
        assert isinstance(loaded, Loaded)
        assert loaded.places == frozenset(range(4))
        assert link.facts is not None
        assert link.facts.n_captures == loaded.n_captures >= 4 * 4
        rng = random.Random(8)
        slots = link.slots(model("split_bpe").key)
        for pair in (slots[:2], slots[1:3], slots[2:]):
            batches = {slot.number: mixed_batch(rng, slot) for slot in pair}
            for slot in pair:
                launch(link, slot, batches[slot.number])
            done = completions(link, 2)
            assert [wrong_documents(done[n], batches[n], model("split_bpe")) for n in batches] == [[], []]
    finally:
        assert link.close(LIMIT_S) == 0


def test_without_cupy_or_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real program says why it cannot work, and ends with the status for that."""
    (tmp_path / "cupy.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(str(tmp_path))
    link = ProcessLink(OPTIONS)
    link.start()
    report = link.next_report()
    assert isinstance(report, Fault)
    assert report.permanent
    assert "CuPy is not installed" in report.reason
    assert link.close(LIMIT_S) == EXIT_PERMANENT


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """After kill -9 of the frontend its engine is gone, too."""
    command = [sys.executable, "-c", PARENT, json.dumps(engine_command(tmp_path))]
    parent = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.communicate()
    until(lambda: not is_alive(pid))
