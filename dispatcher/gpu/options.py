"""Knobs of the GPU route's engines; each once, with its default and one line of documentation in `metadata`."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.options import knob
from gpu_core.options import GpuOptions

KIB, MIB = 1 << 10, 1 << 20
PROCESS, LOCAL = "process", "local"


@dataclass(frozen=True, slots=True)
class GpuRouteOptions:
    """Which GPUs are used, what is set up on them, and how their engine processes are watched."""

    gpus: str = knob("auto", "GPUs to use: auto = all that can be, none, or indices like 0,2.")
    gpu_engine: str = knob(
        "process",
        "Where GPUs are used: process = an engine process for each, started again when it fails; local = one GPU, by "
        "this process itself, until it fails.",
        (PROCESS, LOCAL),
    )
    gpu_classes_kib: str = knob(
        "16,64,256,512,1024,4096",
        "Largest text of each size class in KiB, ascending; at most 8. A longer document takes the CPU route.",
    )
    gpu_contexts: int = knob(3, "Execution contexts of each size class and model on a GPU.", at_least=1, at_most=8)
    gpu_memory_mib: int = knob(0, "Memory for the execution contexts of one model on a GPU; 0 = what they need.")
    gpu_watchdog_s: float = knob(2.0, "Seconds after which an engine that has not finished a replay is killed.")
    gpu_restart_min_s: float = knob(0.5, "Seconds before an engine that ended is started again the first time.")
    gpu_restart_max_s: float = knob(60.0, "Seconds between starts at most; each failure doubles them.")

    def __post_init__(self) -> None:
        """Raise `ValueError` for lists that cannot be read and for values that make no sense."""
        numbers = self.gpu_numbers()
        self.encoder_options(0)
        if self.gpu_engine == LOCAL and numbers is not None and len(numbers) > 1:
            raise ValueError("gpu_engine=local uses one GPU; name one in gpus")

    def gpu_numbers(self) -> tuple[int, ...] | None:
        """The GPUs by index; None = all."""
        if self.gpus == "auto":
            return None
        if self.gpus == "none":
            return ()
        return tuple(sorted(set(_numbers(self.gpus, "gpus"))))

    def encoder_options(self, gpu: int) -> GpuOptions:
        """What one engine sets up for each model. `ValueError` for size classes that make no sense."""
        return GpuOptions(
            device=gpu,
            size_classes_bytes=tuple(KIB * size for size in _numbers(self.gpu_classes_kib, "gpu_classes_kib")),
            contexts_per_class=self.gpu_contexts,
            memory_budget_bytes=MIB * self.gpu_memory_mib,
        )


def _numbers(text: str, name: str) -> list[int]:
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ValueError(f"{name} must be numbers with commas between them, not {text!r}")
    return [int(word) for word in words]
