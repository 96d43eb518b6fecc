"""The page of the dispatcher in process: its programs run; their assertions are their claims."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from dispatcher.gpu.group import EncodedGroup
from dispatcher.group_call import PLAIN
from tests.data import tokenizer_json
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import model

ROOT = Path(__file__).resolve().parents[2]
EMBEDDED = "data = embedded_tokenizer_json()\n"
OPENS = 'GpuRouteOptions(gpus="0", gpu_engine="local"), clocks, driven=True'


def programs() -> list[str]:
    """The blocks of Python, in order."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "embedding.md").read_text("utf-8"), re.M | re.S)


def test_the_program_without_a_gpu(tmp_path: Path) -> None:
    """It runs as it stands."""
    done = subprocess.run(
        [sys.executable, "-c", programs()[0]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_program_with_a_gpu(tmp_path: Path) -> None:
    """It runs over a device that computes on the host, with a smaller tokenizer; the ids are the reference's."""
    source = programs()[1]
    assert EMBEDDED in source
    assert OPENS in source
    path = tmp_path / "tokenizer.json"
    path.write_bytes(model().data)
    names: dict[str, Any] = {
        "data": tokenizer_json("byte_bpe"),
        "script": {"calibrate": False, "make_gpu": HostEngine({model().key: str(path)}).gpu},
        "small": {"gpu_classes_kib": "4,1024", "gpu_contexts": 2, "gpu_watchdog_s": 60.0},
    }
    opens = OPENS.replace('"local"', '"local", **small') + ", **script"
    source = source.replace(EMBEDDED, "").replace(OPENS, opens).replace("del results\n", "")
    exec(compile(source, "docs/embedding.md", "exec"), names)
    results: list[EncodedGroup] = list(names["results"])
    assert names["routes"][1] == "gpu"
    tokenizer = names["tokenizer"]
    for document, result in zip(("Hello, world!", names["received"]), results, strict=True):
        assert bytes(result.ids[0]) == tokenizer.reference_encode(document, PLAIN).ids
