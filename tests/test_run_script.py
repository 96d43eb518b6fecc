"""`scripts/run` on hosts with GPUs of all kinds: which packages it asks for, and that nothing holds it up."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300.0
HEADER = "| NVIDIA-SMI 580.1     Driver Version: 580.1     CUDA {}Version: {}     |"
VENV = """#!/usr/bin/env bash
set -euo pipefail
echo "venv $*" >>"$CALLS"
[[ -z ${FAILS-} || $# -eq 0 ]] || exit 1
mkdir -p "$(dirname "$0")/../.venv/bin"
printf '#!/bin/sh\\necho "sidetok $*" >>"$CALLS"\\n' >"$(dirname "$0")/../.venv/bin/sidetok"
chmod +x "$(dirname "$0")/../.venv/bin/sidetok"
"""
SOONER = """#!/usr/bin/env bash
[[ $1 != --foreground ]] || shift
shift 3
limit_s=60
[[ $* != *cuda* ]] || limit_s=3
exec REAL --foreground -k 1 "$limit_s" "$@"
"""
"""What hangs here is bounded as it is in real life, but sooner; the rest has time on a busy machine."""
PIP = """#!/usr/bin/env bash
[[ $* == *pip* ]] || exit 0
echo "python $*" >>"$CALLS"
[[ $* != *cuda* ]] || exec sleep 600
"""


def program(path: Path, text: str) -> None:
    """A file that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def calls_of(folder: Path, nvidia_smi: str, **environment: str) -> list[str]:
    """What `scripts/run --port 1` starts where `nvidia-smi` is this shell script; empty = there is none."""
    (folder / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts" / "run", folder / "scripts" / "run")
    if not (folder / "scripts" / "venv").exists():
        program(folder / "scripts" / "venv", VENV)
    program(folder / "bin" / "timeout", SOONER.replace("REAL", str(shutil.which("timeout"))))
    program(
        folder / "bin" / "sleep", f'#!/bin/sh\n[ "$1" != 0.1 ] || set -- 0.005\nexec {shutil.which("sleep")} "$@"\n'
    )
    program(folder / "bin" / "nvidia-smi", f"#!/usr/bin/env bash\n{nvidia_smi or 'exit 127'}\n")
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    given = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls), "SIDETOK_UDS": "", **environment}
    command = [str(folder / "scripts" / "run"), "--port", "1"]
    subprocess.run(command, env=os.environ | given, check=True, timeout=LIMIT_S, capture_output=True)
    return calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("nvidia_smi", "extra"),
    [
        (f"echo '{HEADER.format('', '12.4')}'", "cuda12"),
        (f"echo '{HEADER.format('', '13.0')}'", "cuda13"),
        (f"echo '{HEADER.format('UMD ', '13.1')}'", "cuda13"),
        (f"echo '{HEADER.format('', '14.0')}'", "cuda13"),
        (f"echo '{HEADER.format('', '11.8')}'", ""),
        (f"echo '{HEADER.format('', 'N/A')}'", ""),
        ("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9", ""),
        ("head -c 100000 /dev/zero", ""),
        ("exec sleep 600", ""),
        ("trap '' TERM INT; read -r -t 600 <>/dev/zero -d x", ""),
        ("", ""),
    ],
)
def test_packages_follow_the_driver(tmp_path: Path, nvidia_smi: str, extra: str) -> None:
    """Those for the driver's CUDA version; none when it is too old, broken or hangs; the service starts."""
    assert calls_of(tmp_path, nvidia_smi) == [f"venv {extra}", "sidetok serve --port 1"]


def test_without_the_gpu_packages_it_goes_on(tmp_path: Path) -> None:
    """If these cannot be installed, the others are, and the service starts."""
    calls = calls_of(tmp_path, f"echo '{HEADER.format('', '13.0')}'", FAILS="1")
    assert calls == ["venv cuda13", "venv ", "sidetok serve --port 1"]


def test_an_installation_that_hangs_is_bounded(tmp_path: Path) -> None:
    """The real `scripts/venv` gives up the GPU packages, leaves no lock behind, and installs the others."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "venv", tmp_path / "scripts" / "venv")
    (tmp_path / "pyproject.toml").write_text("")
    program(tmp_path / ".venv" / "bin" / "python", PIP)
    program(tmp_path / ".venv" / "bin" / "sidetok", '#!/bin/sh\necho "sidetok $*" >>"$CALLS"\n')
    calls = calls_of(tmp_path, f"echo '{HEADER.format('', '12.0')}'")
    assert [call.rsplit(" ", 1)[-1] for call in calls] == [".[cuda12]", ".", "1"]
    assert (tmp_path / ".venv" / "sidetok.stamp").read_text().count("\n") == 1
