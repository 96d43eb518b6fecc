"""Start values: timed within a budget, fitted, kept on disk."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatcher import calibration
from dispatcher.calibration import (
    BUDGET_NS,
    N_RUNS,
    SIZES,
    CalibrationCache,
    CalibrationKey,
    ProbeFailed,
    Spent,
    calibration_text,
    cpu_probe,
    fit,
    gpu_probe,
    host_name,
    measure,
    start_values,
)
from dispatcher.costs import KINDS, CostKey, Costs, Line, StartValues, content_kind
from dispatcher.gpu.fake_link import FakeEngine, make_slots
from dispatcher.gpu.route import GpuRoute
from dispatcher.gpu.route_tally import RouteSnapshot
from gpu_core.ladder import SizeClass
from tests.fakes import LIMIT_S

KEY = CalibrationKey("host", "", "digest", "fastokens", "1.0")
VALUES = {"ascii": StartValues(Line(1.0, 2.0), Line(3.0, 4.5))}


@dataclass
class ScriptedRoute:
    """A route whose costs are a line; the first run of each is slow, and time passes only here."""

    fixed_ns: int = 50_000
    byte_ns: float = 2.0
    now_ns: int = 0
    n_runs: int = 0

    def __call__(self, text: str) -> Spent:
        """Encode a text."""
        self.n_runs += 1
        ns = int(self.fixed_ns + self.byte_ns * len(text.encode()))
        took_ns = 10 * ns if self.n_runs % (N_RUNS + 1) == 1 else ns
        self.now_ns += took_ns
        return Spent(took_ns, ns // 2)

    def clock(self) -> int:
        """The time now."""
        return self.now_ns


def test_costs_are_found() -> None:
    """Fixed part and part for each byte come out, of time and of host CPU; the slow first runs do not count."""
    route = ScriptedRoute()
    values = measure(route, clock=route.clock)
    assert set(values) == set(KINDS)
    for time, cpu in values.values():
        assert time == pytest.approx((50_000, 2.0), rel=0.01)
        assert cpu == pytest.approx((25_000, 1.0), rel=0.01)
    assert route.n_runs == len(KINDS) * (len(SIZES) + 1) * (N_RUNS + 1)


def test_a_route_that_is_cold_at_first() -> None:
    """What the first calls take does not count: the small texts are timed again, other ones of the same kind."""
    route, texts = ScriptedRoute(), list[str]()

    def probe(text: str) -> Spent:
        texts.append(text)
        spent = route(text)
        return Spent(10 * spent.time_ns, 10 * spent.cpu_ns) if len(texts) <= len(KINDS) * (N_RUNS + 1) else spent

    for time, cpu in measure(probe, clock=route.clock).values():
        assert time == pytest.approx((50_000, 2.0), rel=0.01)
        assert cpu == pytest.approx((25_000, 1.0), rel=0.01)
    assert len(set(texts)) == len(texts)


def test_the_budget_holds() -> None:
    """A slow route is timed with what there is time for, and one text more at most."""
    slow = ScriptedRoute(byte_ns=2_000)
    values = measure(slow, clock=slow.clock)
    assert slow.now_ns <= BUDGET_NS + 10 * (50_000 + 2_000 * SIZES[-1])
    assert values["ascii"].time.byte_ns == pytest.approx(2_000, rel=0.1)
    hopeless = ScriptedRoute(fixed_ns=BUDGET_NS)
    assert len(measure(hopeless, clock=hopeless.clock)) == 1
    assert hopeless.n_runs == 1


def test_a_route_that_fails_at_large_texts_is_judged_by_the_small_ones() -> None:
    """Without those it is not judged at all."""
    route = ScriptedRoute()

    def failing_from(n_bytes: int) -> Callable[[str], Spent]:
        def probe(text: str) -> Spent:
            if len(text.encode()) > n_bytes:
                raise ProbeFailed("scripted")
            return route(text)

        return probe

    assert set(measure(failing_from(SIZES[1]), clock=route.clock)) == set(KINDS)
    with pytest.raises(ProbeFailed):
        measure(failing_from(0), clock=route.clock)


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([(1_000, 500.0)], (500.0, 0.0)),
        ([(1_000, 3_000.0), (2_000, 5_000.0)], (1_000.0, 2.0)),
        ([(1_000, 5_000.0), (2_000, 5_000.0)], (5_000.0, 0.0)),
        ([(1_000, 6_000.0), (100_000, 5_000.0)], None),
        ([(1_000, 1.0), (2_000, 1_000.0)], None),
        ([(1_000, 0.0)], (1.0, 0.0)),
    ],
)
def test_a_line_through_points(points: list[tuple[int, float]], line: tuple[float, float] | None) -> None:
    """The usual one, and no negative part whatever was measured."""
    fitted = fit(points)
    assert fitted.fixed_ns >= 0
    assert fitted.byte_ns >= 0
    if line is not None:
        assert fitted == pytest.approx(line)


def test_texts_are_of_their_kind_and_size() -> None:
    """Every kind and size, and never the same text twice."""
    for kind in KINDS:
        for n_bytes in SIZES:
            text = calibration_text(kind, n_bytes, 1)
            assert n_bytes - 4 < len(text.encode()) <= n_bytes
            assert content_kind(text) == kind
            assert text != calibration_text(kind, n_bytes, 2)


def test_what_was_measured_is_kept(cache_dir: Path) -> None:
    """The next start with the same key measures nothing."""
    route = ScriptedRoute()
    cache = CalibrationCache(cache_dir)
    measured = start_values(route, KEY, cache)
    n_runs = route.n_runs
    assert start_values(route, KEY, CalibrationCache(cache_dir)) == measured
    assert route.n_runs == n_runs
    assert start_values(route, KEY._replace(device="other GPU"), cache)
    assert route.n_runs > n_runs


@pytest.mark.parametrize("field", CalibrationKey._fields)
def test_another_key_is_another_calibration(cache_dir: Path, field: str) -> None:
    """Whatever differs, nothing is believed."""
    cache = CalibrationCache(cache_dir)
    cache.keep(KEY, VALUES)
    assert cache.recall(KEY) == VALUES
    assert cache.recall(KEY._replace(**{field: "another"})) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"key": {}, "values": {}}',
        b'"values": {"ascii": [[1, 2]]}',
        b'"values": {"ascii": 5}',
        b'"values": []',
        b'"values": {"ascii": [["x", 2], [3, 4]]}',
        b'"values": {"ascii": [[-1, 2], [3, 4]]}',
        b'"values": {"ascii": [[NaN, 2], [3, 4]]}',
        b'"values": {"ascii": [[1, 2, 3], [3, 4]]}',
    ],
)
def test_damaged_files_are_absent(cache_dir: Path, content: bytes) -> None:
    """They are written anew."""
    cache = CalibrationCache(cache_dir)
    cache.keep(KEY, VALUES)
    (path,) = (cache_dir / "costs").iterdir()
    if content.startswith(b'"values"'):
        key = json.dumps(json.loads(path.read_bytes())["key"]).encode()
        content = b'{"key": ' + key + b", " + content + b"}"
    path.write_bytes(content)
    assert cache.recall(KEY) is None
    cache.keep(KEY, VALUES)
    assert cache.recall(KEY) == VALUES


def test_a_cache_that_cannot_be_written_keeps_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, nothing else; without a directory nothing is tried."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    cache = CalibrationCache(file)
    cache.keep(KEY, VALUES)
    assert "could not be kept" in caplog.text
    assert cache.recall(KEY) is None
    nowhere = CalibrationCache(None)
    nowhere.keep(KEY, VALUES)
    assert nowhere.recall(KEY) is None


def test_probe_of_the_cpu_route() -> None:
    """It encodes the text and says what that took."""
    seen: list[str] = []
    spent = cpu_probe(seen.append)("text")
    assert seen == ["text"]
    assert spent.time_ns > 0
    assert spent.cpu_ns >= 0


def test_probe_of_the_gpu_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the answer, and until that is counted; without one it fails with a reason and no text."""
    monkeypatch.setattr(calibration, "PROBE_S", LIMIT_S)
    engine = FakeEngine(None, {"m": make_slots("m", (SizeClass(1_024, 64),))}, engine_cpu_ns=5_000_000)
    route = GpuRoute({})
    probe = gpu_probe(route, "m")
    with pytest.raises(ProbeFailed, match="not ready"):
        probe("text")
    route.attach(engine)
    looked, count, snapshot = threading.Event(), route._tally.completed, route.snapshot

    def late_count(*arguments: Any) -> None:
        assert looked.wait(LIMIT_S)
        count(*arguments)

    def look() -> RouteSnapshot:
        seen = snapshot()
        if engine.launches:
            looked.set()
        return seen

    # The replay is counted when somebody has looked for it.
    route._tally.completed = late_count  # type: ignore[assignment]
    route.snapshot = look  # type: ignore[method-assign]

    def serve() -> None:
        while not route.turn(1.0):
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert probe("text").cpu_ns >= 5_000_000
    finally:
        engine.lose()
        thread.join()


def test_start_values_begin_the_costs() -> None:
    """What was measured is what is predicted before anything is observed."""
    costs = Costs({CostKey("cpu", "digest", kind): values for kind, values in VALUES.items()})
    assert costs.of("cpu", "digest", "ascii").time.at(10) == 21.0


def test_host_name_says_how_many_cpus() -> None:
    """Another number of CPUs is another host."""
    assert " x " in host_name()
