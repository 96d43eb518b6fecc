"""The metrics of several frontends as those of one service."""

from __future__ import annotations

import operator

from prometheus_client.parser import text_string_to_metric_families

from service.frontends.exposition import GAUGES, Family, Totals, families_of, merged
from service.metrics import Metrics
from tests.fakes import FakeTokenizer
from tests.service.test_metrics import FAMILIES
from tests.service_fakes import FakeRegistry, run, running


def counter(name: str, **values: float) -> Family:
    """A counter by model."""
    return (name, "Things.", "counter", [(f"{name}_total", {"model": key}, value) for key, value in values.items()])


def gauge(name: str, value: float) -> Family:
    """A gauge without labels."""
    return (name, "Things.", "gauge", [(name, {}, value)])


def shown(totals: Totals, *own: Family) -> dict[tuple[str, str], float]:
    """Samples of an exposition by name and model."""
    families = text_string_to_metric_families(totals.render(list(own)).decode())
    return {(s.name, s.labels.get("model", "")): s.value for family in families for s in family.samples}


def test_counters_are_summed_by_label() -> None:
    """What one frontend alone has counts, too."""
    totals = Totals()
    totals.report(1, [counter("sidetok_tokens", a=1, b=2)])
    totals.report(2, [counter("sidetok_tokens", b=3, c=4)])
    rows = {("sidetok_tokens_total", "a"): 1, ("sidetok_tokens_total", "b"): 5, ("sidetok_tokens_total", "c"): 4}
    assert shown(totals) == rows
    totals.report(2, [counter("sidetok_tokens", b=4, c=4)])
    assert shown(totals)["sidetok_tokens_total", "b"] == 6


def test_a_frontend_that_ended_leaves_its_counters() -> None:
    """No sum goes down, however often a frontend ends; what it held at the moment is gone."""
    totals = Totals()
    totals.report(1, [counter("sidetok_tokens", a=10), gauge("sidetok_in_flight", 3)])
    for n_ends in range(1, 4):
        totals.report(2, [counter("sidetok_tokens", a=5), gauge("sidetok_in_flight", 4)])
        assert shown(totals)["sidetok_in_flight", ""] == 7
        totals.end(2)
        assert shown(totals) == {("sidetok_tokens_total", "a"): 10 + 5 * n_ends, ("sidetok_in_flight", ""): 3}
    totals.end(2)
    assert shown(totals)["sidetok_tokens_total", "a"] == 25


def test_gauges_are_folded_as_they_should_be() -> None:
    """What is held is summed, what is late is the worst, what is left of a device is the least."""
    for name, folded in (
        ("sidetok_in_flight", 5),
        ("sidetok_event_loop_lag_seconds", 3),
        ("sidetok_start_time_seconds", 2),
        ("sidetok_gpu_memory_bytes", 2),
        ("sidetok_ready", 3),
    ):
        ((_, _, _, samples),) = merged([[gauge(name, 2)], [gauge(name, 3)]])
        assert samples == [(name, {}, folded)]


def test_every_gauge_has_a_rule() -> None:
    """Whoever adds a gauge says what those of several frontends are together; nothing else is in the table."""
    process = {name for name in GAUGES if name.startswith("process_")}
    assert set(GAUGES) - process == {name for name, kind in FAMILIES.items() if kind == "gauge"}

    async def test() -> None:
        async with running(FakeRegistry(fake=FakeTokenizer())) as it:
            assert {m.name for m in Metrics(it.service).collect() if m.type == "gauge"} <= set(GAUGES)

    run(test())


def test_one_report_is_shown_as_the_frontend_would() -> None:
    """Histograms, labels, documentation and families without samples go through unchanged."""

    async def test() -> None:
        async with running(FakeRegistry(fake=FakeTokenizer())) as it:
            await it.call("/v1/encode", b'{"text": "a"}')
            metrics = it.service.metrics.collect()
            totals = Totals()
            totals.report(1, families_of(metrics))
            by_name = operator.attrgetter("name")
            again = list(text_string_to_metric_families(totals.render([]).decode()))
            for before, after in zip(sorted(metrics, key=by_name), sorted(again, key=by_name), strict=True):
                assert (after.documentation, after.type) == (before.documentation, before.type)
                assert [(s.name, s.labels, s.value) for s in after.samples] == [
                    (s.name, s.labels, s.value) for s in before.samples
                ]

    run(test())
