"""What the dispatcher needs of its GPUs, and what stands for them where there are none."""

from __future__ import annotations

from typing import Protocol

from dispatcher.costs import Costs
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpu_gate import Submits
from dispatcher.policy import GpuLoad
from gpu_core.normal_form import Rewriter


class GpuSet(Protocol):
    """Implemented by `dispatcher.gpus.Gpus`."""

    costs: Costs

    @property
    def any(self) -> bool:
        """Whether there is a queue at all."""

    @property
    def engine_cpu_ns(self) -> int:
        """CPU time of engine processes, for replays."""

    def loads(self, key: str) -> list[GpuLoad]:
        """The queue of each GPU for a model."""

    def route(self, index: int) -> Submits:
        """The route of an entry of `loads`."""

    def reserve(self, key: str, n_bytes: int) -> ReservedText | None:
        """Memory that a GPU reads, for a long text of a model; None when none can be spared."""

    def settle(self) -> None:
        """Count what is only noted so far; before counters are read."""

    def why_not(self, key: str) -> str:
        """Why a model is not served now."""

    def rewriter(self, key: str) -> Rewriter | None:
        """What rewrites documents of a model that are not in normal form; None when nothing does."""


class NoGpus:
    """Stands for GPUs where there are none."""

    any = False
    engine_cpu_ns = 0

    def __init__(self) -> None:
        self.costs = Costs()

    def loads(self, key: str) -> list[GpuLoad]:
        """None."""
        return []

    def route(self, index: int) -> Submits:
        """Never asked for."""
        raise LookupError(index)

    def reserve(self, key: str, n_bytes: int) -> None:
        """None."""

    def settle(self) -> None:
        """Nothing."""

    def why_not(self, key: str) -> str:
        """Always the same."""
        return "there is no GPU route"

    def rewriter(self, key: str) -> None:
        """None."""
