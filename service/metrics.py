"""Publishes what the rooms counted, in Prometheus' text format. The only file that knows metric names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service import __version__
from service.gpu_metrics import buckets, gpu_metrics

if TYPE_CHECKING:
    from service.state import Service


class ServiceCollector(Collector):
    """All `sidetok_*` metrics, made from snapshots at the moment of the scrape."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield every family; runs on the scrape's thread."""
        yield from self._durations()
        yield from self._work()
        yield from self._flow()
        yield from self._models()
        yield from self._exactness()
        yield from self._gpus()

    def _durations(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "sidetok_request_duration_seconds",
            "From the head of a request to the end of its answer.",
            labels=("model", "route", "outcome"),
        )
        for labels, histogram in dict(self._service.meter.durations).items():
            family.add_metric(labels, buckets(histogram), histogram.sum_s)
        yield family

    def _work(self) -> Iterator[Metric]:
        tally = self._service.dispatcher.snapshot()
        queue = HistogramMetricFamily(
            "sidetok_queue_duration_seconds", "From admission to the start of work.", labels=("route",)
        )
        for route, histogram in tally.queue.items():
            queue.add_metric((route,), buckets(histogram), histogram.sum_s)
        yield queue
        cpu = CounterMetricFamily(
            "sidetok_host_cpu_seconds",
            "CPU time of this host, by thread clocks, and of GPU engines; parts without a model serve all of them.",
            labels=("model", "route", "part"),
        )
        tokens = CounterMetricFamily("sidetok_tokens", "Ids produced by encoding.", labels=("model", "route"))
        documents = CounterMetricFamily("sidetok_documents", "Documents encoded.", labels=("model", "route"))
        size = CounterMetricFamily("sidetok_input_bytes", "Bytes of encode bodies.", labels=("model", "route"))
        for key, work in tally.work.items():
            cpu.add_metric((*key, "decode_body"), work.decode_body_cpu_ns * 1e-9)
            cpu.add_metric((*key, "encode"), work.encode_cpu_ns * 1e-9)
            cpu.add_metric((*key, "submit"), work.submit_cpu_ns * 1e-9)
            cpu.add_metric((*key, "write_answer"), work.write_answer_cpu_ns * 1e-9)
            tokens.add_metric(key, work.n_tokens)
            documents.add_metric(key, work.n_documents)
            size.add_metric(key, work.n_bytes)
        for labels, cpu_ns in self._shared_cpu_ns():
            cpu.add_metric(labels, cpu_ns * 1e-9)
        yield from (cpu, tokens, documents, size)

    def _shared_cpu_ns(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """CPU time that serves all models, by route and part."""
        dispatcher, gpus = self._service.dispatcher, self._service.gpus
        delivered_ns = sum(route.deliver_cpu_ns for route in gpus.snapshots().values()) if gpus is not None else 0
        here_ns = delivered_ns + dispatcher.written_by_gpus_ns()
        for part, cpu_ns in dispatcher.clocks.snapshot().items():
            if part == "event_loop":
                # It drives the GPU routes; what it does for them, and answers that it writes then, count as such.
                yield ("", "", part), max(0, cpu_ns - here_ns)
            else:
                yield ("", "", part), cpu_ns
        if gpus is not None:
            yield ("", "gpu", "deliver"), delivered_ns
            yield ("", "gpu", "engine"), sum(status.cpu_ns for status in gpus.statuses())

    def _gpus(self) -> Iterator[Metric]:
        service = self._service
        models = service.registry.models()
        names = {model.tokenizer.spec.digest: model.name for model in reversed(models) if model.tokenizer}
        yield from gpu_metrics(service.gpus, service.dispatcher.decisions(), names)

    def _flow(self) -> Iterator[Metric]:
        service = self._service
        admission = service.dispatcher.admission
        yield GaugeMetricFamily(
            "sidetok_in_flight",
            "Requests admitted and not finished, unread answers included.",
            value=admission.n_requests,
        )
        yield GaugeMetricFamily(
            "sidetok_in_flight_bytes", "Bytes of their bodies and unread answers.", value=admission.n_bytes
        )
        shed = CounterMetricFamily("sidetok_shed", "Requests refused for load.", labels=("reason",))
        for reason, n in admission.shed.items():
            shed.add_metric((reason,), n)
        yield shed
        yield GaugeMetricFamily(
            "sidetok_event_loop_lag_seconds",
            "How late the event loop ran a timer, the worst of the last 10 s.",
            value=service.lag.worst_s,
        )
        yield GaugeMetricFamily("sidetok_cpu_workers", "Worker threads.", value=service.dispatcher.n_workers)
        yield GaugeMetricFamily("sidetok_ready", "1 when /ready answers 200.", value=int(service.ready))

    def _models(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("sidetok_build_info", "Version of the service.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build
        yield GaugeMetricFamily(
            "sidetok_start_time_seconds", "Unix time of the start of serving.", value=self._service.started_s
        )
        info = GaugeMetricFamily(
            "sidetok_model_info",
            "1 for a model that serves, 0 for one that loads or failed.",
            labels=("model", "engine", "family", "digest", "state"),
        )
        for model in self._service.registry.models():
            tokenizer = model.tokenizer
            labels = (
                (model.name, tokenizer.engine, tokenizer.spec.pattern_family, tokenizer.spec.digest[:16], model.state)
                if tokenizer
                else (model.name, "", "", "", model.state)
            )
            info.add_metric(labels, int(model.state == "ready"))
        yield info

    def _exactness(self) -> Iterator[Metric]:
        guarded = CounterMetricFamily(
            "sidetok_guarded_documents",
            "Documents that went to the reference because the engine is known to differ on their kind.",
            labels=("model", "reason"),
        )
        faults = CounterMetricFamily(
            "sidetok_engine_faults",
            "Documents the reference answered because the engine failed.",
            labels=("model", "engine"),
        )
        for model in self._service.registry.models():
            if (tokenizer := model.tokenizer) is None:
                continue
            counters = tokenizer.counters()
            for reason, n in counters.guarded.items():
                guarded.add_metric((model.name, reason), n)
            faults.add_metric((model.name, tokenizer.engine), counters.engine_faults)
        shadow = CounterMetricFamily(
            "sidetok_shadow_checks", "Documents offered to the shadow check.", labels=("model", "outcome")
        )
        for name, counts in dict(self._service.dispatcher.shadow.counts).items():
            shadow.add_metric((name, "equal"), counts.n_equal)
            shadow.add_metric((name, "mismatch"), counts.n_mismatched)
            shadow.add_metric((name, "dropped"), counts.n_dropped)
            shadow.add_metric((name, "failed"), counts.n_failed)
        yield from (guarded, faults, shadow)


class Metrics:
    """The exposition of one service; one per process."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ServiceCollector(service))
        ProcessCollector(registry=self._registry)

    def collect(self) -> list[Metric]:
        """Every family, as it is now."""
        return list(self._registry.collect())

    def render(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)
