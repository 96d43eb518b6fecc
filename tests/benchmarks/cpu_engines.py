"""Times of the CPU engines of the service, one thread, in a process of its own: they set switches of the process.

    python -m tests.benchmarks.cpu_engines TOKENIZER_JSON FOLDER     texts are the files of the folder, by name

Prints {engine: {text: milliseconds of the first call on it}} as JSON; an engine that is not installed is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dispatcher.engines import CpuEngine, is_fault
from dispatcher.engines.choice import FAST_ENGINES
from dispatcher.engines.piecewise_engine import PiecewiseEngine
from dispatcher.engines.reference_engine import ReferenceEngine
from gpu_core.spec import read_spec


def first_calls_ms(file: bytes, texts: dict[str, list[bytes]]) -> dict[str, dict[str, float]]:
    """Times of every engine on every text, from another process; several documents of a text are one batch."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, data = Path(folder, "tokenizer.json"), Path(folder, "texts")
        tokenizer.write_bytes(file)
        data.mkdir()
        for name, documents in texts.items():
            rows = [document.decode(errors="replace") for document in documents]
            (data / name).write_text(json.dumps(rows), encoding="utf-8")
        command = [sys.executable, "-m", "tests.benchmarks.cpu_engines", str(tokenizer), str(data)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def _engines(file: bytes) -> dict[str, CpuEngine]:
    text, spec = file.decode(), read_spec(file)
    engines: dict[str, CpuEngine] = {"tokenizers": ReferenceEngine(text)}
    for name, load in FAST_ENGINES.items():
        try:
            engines[name] = PiecewiseEngine(load()(text, spec), spec, file)
        except ImportError:
            continue
    return engines


def main() -> None:
    """Command line."""
    file, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
    found: dict[str, dict[str, float | None]] = {}
    for name, engine in _engines(file).items():
        for path in sorted(folder.iterdir()):
            documents = json.loads(path.read_text(encoding="utf-8"))
            begin = time.perf_counter()
            try:
                engine.encode_many(documents)
                took: float | None = (time.perf_counter() - begin) * 1000
            except BaseException as error:
                if not is_fault(error):
                    raise
                took = None
            found.setdefault(name, {})[path.name] = took
    print(json.dumps(found))


if __name__ == "__main__":
    main()
