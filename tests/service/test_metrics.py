"""The exposition: names, labels and values, and that neither can be made to grow by clients."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.admission import REASONS
from dispatcher.options import DispatcherOptions
from service import __version__
from tests.fakes import FakeTokenizer
from tests.service_fakes import FakeRegistry, Running, eventually, run, running

MARKER = "the-secret-text"

FAMILIES = {
    "sidetok_request_duration_seconds": "histogram",
    "sidetok_queue_duration_seconds": "histogram",
    "sidetok_host_cpu_seconds": "counter",
    "sidetok_tokens": "counter",
    "sidetok_documents": "counter",
    "sidetok_input_bytes": "counter",
    "sidetok_in_flight": "gauge",
    "sidetok_in_flight_bytes": "gauge",
    "sidetok_shed": "counter",
    "sidetok_event_loop_lag_seconds": "gauge",
    "sidetok_cpu_workers": "gauge",
    "sidetok_ready": "gauge",
    "sidetok_build_info": "gauge",
    "sidetok_start_time_seconds": "gauge",
    "sidetok_model_info": "gauge",
    "sidetok_guarded_documents": "counter",
    "sidetok_engine_faults": "counter",
    "sidetok_shadow_checks": "counter",
    "sidetok_route_decisions": "counter",
    "sidetok_gpu_batch_documents": "histogram",
    "sidetok_gpu_batch_bytes": "histogram",
    "sidetok_gpu_replay_duration_seconds": "histogram",
    "sidetok_gpu_replayed_documents": "counter",
    "sidetok_gpu_replayed_bytes": "counter",
    "sidetok_gpu_in_flight": "gauge",
    "sidetok_gpu_waiting_documents": "gauge",
    "sidetok_gpu_waiting_bytes": "gauge",
    "sidetok_gpu_held_slots": "gauge",
    "sidetok_gpu_stage_cpu_seconds": "counter",
    "sidetok_gpu_fallbacks": "counter",
    "sidetok_gpu_needs_cpu_documents": "counter",
    "sidetok_gpu_rewritten_documents": "counter",
    "sidetok_gpu_engine_state": "gauge",
    "sidetok_gpu_engine_restarts": "counter",
    "sidetok_gpu_captures": "gauge",
    "sidetok_gpu_memory_bytes": "gauge",
    "sidetok_gpu_info": "gauge",
    "sidetok_route_cost_seconds": "gauge",
    "sidetok_route_cpu_cost_seconds": "gauge",
}


async def scrape(it: Running) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample by its name and labels."""
    text = (await it.call("/metrics", method="GET")).body.decode()
    assert MARKER not in text
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name in FAMILIES:
            assert family.type == FAMILIES[family.name]
            assert family.documentation.endswith(".")
        for sample in family.samples:
            key = tuple(sorted(sample.labels.items()))
            assert key not in samples.setdefault(sample.name, {})
            samples[sample.name][key] = sample.value
    return samples


def labels(**values: str) -> tuple[tuple[str, str], ...]:
    """Labels as a key."""
    return tuple(sorted(values.items()))


def with_service(test: Any, **work: Any) -> None:
    """Run a test with a service."""

    async def main() -> None:
        registry = FakeRegistry(fake=FakeTokenizer(), other=FakeTokenizer())
        async with running(registry, work=DispatcherOptions(**{"cpu_workers": 2, **work})) as it:
            await test(it)

    run(main())


def test_every_family_is_there_from_the_start() -> None:
    """All families of sidetok and those of the process are exposed before the first request."""

    async def test(it: Running) -> None:
        text = (await it.call("/metrics", method="GET")).body.decode()
        typed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        for name, kind in FAMILIES.items():
            assert typed[f"{name}_total" if kind == "counter" else name] == kind
        assert "process_cpu_seconds_total" in typed
        assert "process_resident_memory_bytes" in typed
        samples = await scrape(it)
        assert samples["sidetok_build_info"] == {labels(version=__version__): 1}
        assert samples["sidetok_ready"][()] == 1
        assert samples["sidetok_cpu_workers"][()] == 2
        assert samples["sidetok_shed_total"] == {labels(reason=reason): 0 for reason in REASONS}
        assert {dict(key)["model"]: value for key, value in samples["sidetok_model_info"].items()} == {
            "fake": 1,
            "other": 1,
        }

    with_service(test)


def test_requests_are_counted() -> None:
    """Durations by model and outcome, documents, ids and bytes by model, queue times by route."""

    async def test(it: Running) -> None:
        bodies = [
            orjson.dumps(body) for body in ({"text": "abc"}, {"text": ["a", "bc"], "model": "other"}, {"text": 1})
        ]
        for body in bodies:
            await it.call("/v1/encode", body)
        await it.call("/v1/decode", b'{"ids": [97]}')
        samples = await scrape(it)
        count = samples["sidetok_request_duration_seconds_count"]
        assert count == {
            labels(model="fake", route="cpu", outcome="ok"): 2,
            labels(model="other", route="cpu", outcome="ok"): 1,
            labels(model="", route="cpu", outcome="bad_request"): 1,
        }
        for name, values in (("tokens", (3, 3)), ("documents", (1, 2)), ("input_bytes", tuple(map(len, bodies[:2])))):
            found = samples[f"sidetok_{name}_total"]
            assert found[labels(model="fake", route="cpu")] == values[0]
            assert found[labels(model="other", route="cpu")] == values[1]
        assert samples["sidetok_queue_duration_seconds_count"] == {labels(route="cpu"): 4}
        parts = {(dict(key)["model"], dict(key)["part"]) for key in samples["sidetok_host_cpu_seconds_total"]}
        assert {("fake", "decode_body"), ("fake", "encode"), ("fake", "write_answer"), ("", "event_loop")} <= parts
        assert samples["sidetok_in_flight"][()] == samples["sidetok_in_flight_bytes"][()] == 0

    with_service(test)


def test_histograms_are_cumulative() -> None:
    """Buckets grow up to the count, from 10 us to 10 s and beyond."""

    async def test(it: Running) -> None:
        for _ in range(20):
            await it.call("/v1/encode", b'{"text": "abc"}')
        samples = await scrape(it)
        buckets = samples["sidetok_request_duration_seconds_bucket"]
        found = sorted((float(dict(key)["le"]), value) for key, value in buckets.items())
        assert [value for _, value in found] == sorted(value for _, value in found)
        assert (found[0][0], found[-2][0], found[-1]) == (1e-5, 10.0, (float("inf"), 20.0))

    with_service(test)


def test_flow_is_shown_while_it_flows() -> None:
    """Requests and bytes in flight, and refusals, are those of the moment."""

    async def test(it: Running) -> None:
        (tokenizer,) = {it.service.registry.models()[0].tokenizer}
        assert isinstance(tokenizer, FakeTokenizer)
        gate = tokenizer.gate("hold")
        body = b'{"text": "hold"}'
        held = asyncio.ensure_future(it.call("/v1/encode", body, content_length=str(len(body))))
        await eventually(gate.entered.is_set)
        await it.call("/v1/encode", body)
        samples = await scrape(it)
        assert samples["sidetok_in_flight"][()] == 1
        assert samples["sidetok_in_flight_bytes"][()] == len(body)
        assert samples["sidetok_shed_total"][labels(reason="requests")] == 1
        gate.open()
        await held

    with_service(test, max_in_flight=1)


def test_the_shadow_check_is_shown() -> None:
    """Outcomes of the shadow check are counted by model."""

    async def test(it: Running) -> None:
        tokenizer = it.service.registry.models()[0].tokenizer
        assert isinstance(tokenizer, FakeTokenizer)
        tokenizer.wrong.add(MARKER)
        for text in ("a", MARKER):
            await it.call("/v1/encode", orjson.dumps({"text": text}))
        counts = it.service.dispatcher.shadow.counts
        await eventually(lambda: bool(counts) and counts["fake"].n_equal + counts["fake"].n_mismatched == 2)
        found = (await scrape(it))["sidetok_shadow_checks_total"]
        assert found[labels(model="fake", outcome="equal")] == 1
        assert found[labels(model="fake", outcome="mismatch")] == 1

    with_service(test, shadow_check=1.0)


def test_clients_cannot_make_labels() -> None:
    """Unknown models, odd queries, ids, dialects and paths add no label, however many there are."""

    async def test(it: Running) -> None:
        for i in range(200):
            name = f"{MARKER}-{i}"
            await it.call("/v1/encode", orjson.dumps({"text": "a", "model": name}), x_request_id=name)
            await it.call("/v1/encode", b"a", query=f"model={name}".encode(), content_type="application/octet-stream")
            await it.call("/v1/encode", b"a", query=f"{name}=1".encode(), content_type="application/octet-stream")
            await it.call(f"/v1/{name}", b"a", x_sidetok_dialect=name)
            await it.call("/tokenize", orjson.dumps({"prompt": "a", "model": name}), content_type="application/json")
        samples = await scrape(it)
        assert set(samples["sidetok_request_duration_seconds_count"]) == {
            labels(model="", route="cpu", outcome="bad_request")
        }
        assert samples["sidetok_request_duration_seconds_count"].popitem()[1] == 800
        assert sum(len(found) for name, found in samples.items() if name.startswith("sidetok")) < 120

    with_service(test)
