"""Facts about the machine and the software that a number is worth nothing without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "httptools", "orjson", "msgpack", "tokenizers", "fastokens", "gigatoken", "tiktoken", "toktier")


def machine_facts() -> dict[str, Any]:
    """CPU, memory, GPUs and kernel of this machine."""
    return {
        "cpu": _field_of("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "hypervisor": "hypervisor" in _field_of("/proc/cpuinfo", "flags").split(),
        "gpus": gpus(),
    }


def versions() -> dict[str, str]:
    """Python, the packages that take part, and this one."""
    found = {"python": platform.python_version(), "implementation": platform.python_implementation()}
    for name in ("sidetok", *PACKAGES):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def gpus() -> list[str]:
    """Names and drivers of the GPUs, as the driver's own tool gives them; none without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def load_average() -> float:
    """Processes that wanted a CPU in the last minute: how busy the machine was before the run."""
    return os.getloadavg()[0]


def _memory_gib() -> float | None:
    kib = _field_of("/proc/meminfo", "MemTotal").split()
    return round(int(kib[0]) / (1 << 20), 1) if kib else None


def _field_of(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
