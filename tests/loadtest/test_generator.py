"""The generator measures itself."""

from __future__ import annotations

import pytest

from loadtest.client_process import Effort
from loadtest.generator import describe


@pytest.mark.parametrize(("busiest", "limits"), [(0.4, False), (0.51, True)])
def test_busy_clients_are_told(busiest: float, limits: bool) -> None:
    """The busiest client process decides whether the generator limits a result."""
    found = describe([Effort(10.0, 1.0, 3), Effort(10.0, 10 * busiest, 4)], 1000)
    assert found["busy"] == pytest.approx(busiest)
    assert found["limits"] is limits
    assert found["n_connections"] == 7
    assert found["cpu_us_per_request"] == pytest.approx((1 + 10 * busiest) * 1000)
