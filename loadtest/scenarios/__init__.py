"""What is sent: each scenario turns a rate, a duration and texts into a plan."""

from __future__ import annotations

from loadtest.scenarios.agent import AGENT
from loadtest.scenarios.batch import BATCH
from loadtest.scenarios.burst import BURST
from loadtest.scenarios.closed import CLOSED
from loadtest.scenarios.fleet import FLEET
from loadtest.scenarios.hostile import HOSTILE
from loadtest.scenarios.mixed import MIXED
from loadtest.scenarios.scenario import Scenario, Setting
from loadtest.scenarios.short import SHORT
from loadtest.scenarios.soak import SOAK

__all__ = ["SCENARIOS", "Scenario", "Setting"]

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (SHORT, AGENT, FLEET, BATCH, MIXED, HOSTILE, BURST, SOAK, CLOSED)
}
