"""From measured rates to a fleet: GPUs that one machine's service feeds, cost of a million requests, what limits first.

Every figure is arithmetic on result files; nothing is assumed but prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.report import gpu_share, host_cpu_us
from loadtest.result import Result
from loadtest.scenarios import SCENARIOS
from loadtest.scenarios.fleet import FLEET
from loadtest.stepping import Step
from loadtest.table import markdown_table, number, percent

HEAD = (
    "scenario", "route", "sustained requests/s", "of each engine", "host CPU us/request", "CPUs busy", "MB/s of text",
    "model GPUs fed", "per million requests", "limit",
)  # fmt: skip

MAX_CPU_SHARE = 0.8
"""Of a machine's CPUs: a server that keeps more of them busy is limited by them."""


@dataclass(frozen=True, slots=True)
class Prices:
    """For an hour, in any currency; 0 = not given."""

    core_hour: float = 0.0
    gpu_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one machine sustained in one result."""

    scenario: str
    gpu_share: float | None
    sustained_per_s: float
    host_cpu_us: float | None
    bytes_per_s: float
    n_gpus: int
    limit: str

    @property
    def cores(self) -> float | None:
        """CPUs that the service keeps busy at that rate."""
        return self.sustained_per_s * self.host_cpu_us * 1e-6 if self.host_cpu_us is not None else None

    @property
    def per_engine_per_s(self) -> float | None:
        """Requests/s of each GPU that the service was given; None on the CPU route."""
        return self.sustained_per_s / self.n_gpus if self.n_gpus else None

    @property
    def gpus_fed(self) -> float | None:
        """Model GPUs whose requests it takes, at the rate of the fleet; only the fleet's own requests can tell."""
        return self.sustained_per_s / FLEET.rate if self.scenario == FLEET.name else None

    def cost_per_million(self, prices: Prices) -> float | None:
        """The CPUs kept busy, and the whole of each GPU that the service was given."""
        if self.cores is None or prices == Prices():
            return None
        per_hour = self.cores * prices.core_hour + self.n_gpus * prices.gpu_hour
        return per_hour / (self.sustained_per_s * 3600) * 1e6


def capacity_of(result: Result) -> Capacity | None:
    """The highest sustained step of a result; None without one, for wrong ids, a closed loop, or neighbours."""
    sustained = [step for step in result["steps"] if not step["saturated"] and not step["generator"]["limits"]]
    wrong = any(step["equality"].get("n_different") for step in result["steps"])
    crowded = any(step["neighbours"] for step in result["steps"])
    if not sustained or wrong or crowded or SCENARIOS[result["scenario"]].closed:
        return None
    best = max(sustained, key=lambda step: step["achieved_per_s"])
    on_gpu = gpu_share(best)
    return Capacity(
        result["scenario"],
        on_gpu,
        best["achieved_per_s"],
        host_cpu_us(best),
        best["offered_bytes_per_s"],
        (best["server"]["gpu_engines"] or len(result["machine"]["gpus"])) if on_gpu else 0,
        what_limits(result, best),
    )


def what_limits(result: Result, best: Step) -> str:
    """What ended the search for the highest rate, as far as the result can tell."""
    found: dict[str, Any] = result["saturation"]
    if found["limited_by"] == "generator":
        return "the generator: the service can do more"
    if found["saturated_at_per_s"] is None:
        return "none was reached"
    cpu_us, usable = host_cpu_us(best), result["machine"]["usable_cpus"]
    if cpu_us is not None and best["achieved_per_s"] * cpu_us * 1e-6 > MAX_CPU_SHARE * usable:
        return "the machine's CPUs"
    return f"the service: {found['reason']}"


def table(results: list[Result], prices: Prices = Prices(), names: Sequence[str] = ()) -> str:
    """A row for each result that sustained a rate with the right ids, with its name if they have names."""
    rows = []
    for i, capacity in enumerate(map(capacity_of, results)):
        if capacity is None:
            continue
        rows.append(
            [
                *names[i : i + 1],
                capacity.scenario,
                "CPU" if not capacity.gpu_share else f"GPU {percent(capacity.gpu_share)}",
                number(capacity.sustained_per_s),
                number(capacity.per_engine_per_s),
                number(capacity.host_cpu_us),
                number(capacity.cores),
                number(capacity.bytes_per_s / 1e6),
                number(capacity.gpus_fed),
                number(capacity.cost_per_million(prices)),
                capacity.limit,
            ]
        )
    head = ("result", *HEAD) if names else HEAD
    return markdown_table(head, rows) if rows else "No result sustained a rate with the right ids."
