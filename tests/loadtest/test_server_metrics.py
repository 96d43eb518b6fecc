"""What a server counted during a step, from two scrapes."""

from __future__ import annotations

from loadtest.server_metrics import Scrape, describe, parse

BEFORE = """\
# HELP sidetok_host_cpu_seconds_total CPU time
# TYPE sidetok_host_cpu_seconds_total counter
sidetok_host_cpu_seconds_total{model="m",route="cpu",part="encode"} 1.0
sidetok_host_cpu_seconds_total{model="",route="",part="event_loop"} 2.0
sidetok_request_duration_seconds_count{model="m",route="cpu",outcome="ok"} 100.0
sidetok_request_duration_seconds_bucket{model="m",route="cpu",outcome="ok",le="+Inf"} 100.0
process_cpu_seconds_total 3.5
process_resident_memory_bytes 1e+08
"""
AFTER = """\
sidetok_host_cpu_seconds_total{model="m",route="cpu",part="encode"} 1.5
sidetok_host_cpu_seconds_total{model="",route="",part="event_loop"} 2.25
sidetok_request_duration_seconds_count{model="m",route="cpu",outcome="ok"} 900.0
sidetok_request_duration_seconds_count{model="m",route="gpu",outcome="ok"} 200.0
sidetok_request_duration_seconds_bucket{model="m",route="cpu",outcome="ok",le="+Inf"} 900.0
sidetok_documents_total{model="m",route="gpu"} 200
sidetok_tokens_total{model="m",route="gpu"} 12345
sidetok_shed_total{reason="requests"} 3
sidetok_gpu_info{gpu="0",name="A GPU"} 1
sidetok_gpu_info{gpu="1",name="A GPU"} 0
sidetok_gpu_fallbacks_total{gpu="0",reason="engine"} 2
process_cpu_seconds_total 4.5
process_resident_memory_bytes 1.5e+08
not a sample
"""


def test_parse() -> None:
    """Samples by name and labels, escaped values included; comments and noise are passed over."""
    samples = parse('a{x="1",y="q\\"}, {"} 2\n# a 3\nb 4 1700000000\nc NaN\nd{ 5\nno number x\n')
    assert samples["a", (("x", "1"), ("y", 'q\\"}, {'))] == 2
    assert samples["b", ()] == 4
    assert "no" not in {name for name, _ in samples}


def test_differences_per_request() -> None:
    """Host CPU per request and its parts, routes, and every counter that moved; gauges and buckets are none."""
    found = describe(Scrape(parse(BEFORE)), Scrape(parse(AFTER)), 1000)
    assert found is not None
    assert found["host_cpu_us_per_request"] == 750
    assert found["host_cpu_us_by_part"] == {"encode": 500, "event_loop": 250}
    assert found["process_cpu_us_per_request"] == 1000
    assert found["requests_by_route"] == {"cpu": 800, "gpu": 200}
    assert found["documents_by_route"] == {"gpu": 200}
    assert found["tokens"] == 12345
    assert found["gpu_engines"] == 1
    assert found["gpu_fallbacks"] == {"engine": 2}
    assert found["shed"] == {"requests": 3}
    assert found["memory_bytes"] == [1e8, 1.5e8]
    assert not any("bucket" in name or "resident" in name for name in found["counters"])


def test_a_server_without_metrics() -> None:
    """Nothing is made up for a server that counts nothing."""
    assert describe(Scrape({}), Scrape({}), 10) is None
    assert describe(Scrape({}), Scrape(parse("other_total 5")), 10) == {
        "host_cpu_us_per_request": None, "host_cpu_us_by_part": {}, "process_cpu_us_per_request": None,
        "requests_by_route": {}, "requests_by_outcome": {}, "documents_by_route": {}, "tokens": 0,
        "gpu_engines": 0, "gpu_fallbacks": {}, "gpu_needs_cpu": {},
        "guarded_documents": 0, "shed": {}, "memory_bytes": [None, None], "counters": {},
    }  # fmt: skip
