"""A service of two frontends and both routes that has done some work: what it exports is what queries may ask for."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import ServiceCollector
from tests.deploy.promql import TARGET_LABELS, Metrics
from tests.end_to_end.conftest import folder as folder
from tests.end_to_end.conftest import home as home
from tests.end_to_end.gpu_harness import FLAGS, gpu_program, wait_served
from tests.end_to_end.harness import ROOT, Wire, encode, serving
from tests.fakes import FakeTokenizer
from tests.service_fakes import FakeRegistry, running
from tests.synthetic import SYNTHETIC

DEPLOY = ROOT / "deploy"
HANG_S = 600.0
"""A program that runs for so long hangs; reaching it fails the test, so nothing depends on its value."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
"""What the samples of a family are called."""
SOME = ("sidetok_gpu_replay_duration_seconds_count", "sidetok_shadow_checks_total")
"""What appears with the first work of its kind."""


def tool(name: str) -> str:
    """The path of a program that the environment of the tests, or the machine, has; skips the test without it."""
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(*command: str, text: str | None = None, **environ: str) -> str:
    """Standard output of a program that must succeed; `text` is its standard input."""
    given = {**os.environ, **environ}
    result = subprocess.run(command, capture_output=True, text=True, input=text, timeout=HANG_S, check=False, env=given)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def instructions(name: str) -> list[str]:
    """What stands behind an instruction of the Dockerfile, each time it is used."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in re.findall(rf"^{name}\s+(.*)$", text, re.M)]


def image_environ() -> dict[str, str]:
    """The variables that the image sets, by name."""
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(instructions("ENV"))))


@pytest.fixture(scope="session")
def exposition() -> Iterator[str]:
    """What a service exports that served requests on both routes."""
    with tempfile.TemporaryDirectory(prefix="sidetok-") as name:
        home = Path(name)
        (home / "tokenizer.json").write_bytes(SYNTHETIC["byte_bpe"]())
        flags = (f"--model=small={home / 'tokenizer.json'}", "--shadow-check=1", "--frontends=2", *FLAGS)
        with serving(home, *flags, program=gpu_program(home)) as process:
            wait_served(process)
            wire = Wire(process.connect())
            assert wire.ask(encode("Hello, world!", route="cpu")).status == 200
            # The engine of this frontend may be later than another's.
            process.eventually(lambda: wire.ask(encode("Hello, world!", route="gpu")).status == 200)
            process.eventually(lambda: set(SOME) <= process.metrics().keys())
            answers: list[httpx.Response] = []
            with process.client() as client:

                def answered() -> bool:
                    answers.append(client.get("/metrics"))
                    return answers[-1].status_code == 200

                process.eventually(answered)
            yield answers[-1].text


@pytest.fixture(scope="session")
def exported(exposition: str) -> Metrics:
    """Labels of every exported metric, with those that Prometheus adds, and its own `up`."""
    labels: Metrics = {"up": TARGET_LABELS}
    declared = declared_labels()
    for family in text_string_to_metric_families(exposition):
        found = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        assert not family.samples or declared.get(family.name, found) == found, family.name
        found = TARGET_LABELS | declared.get(family.name, found)
        for suffix in SUFFIXES.get(family.type, ("",)):
            labels[family.name + suffix] = found | {"le"} if suffix == "_bucket" else found
    return labels


def declared_labels() -> dict[str, frozenset[str]]:
    """Labels by family, also of those that have no sample before something goes wrong."""

    async def families() -> dict[str, frozenset[str]]:
        async with running(FakeRegistry(fake=FakeTokenizer())) as it:
            return {family.name: labels_of(family) for family in ServiceCollector(it.service).collect()}

    return asyncio.run(families())


def labels_of(family: Metric) -> frozenset[str]:
    """The labels that a family was made with."""
    return frozenset(getattr(family, "_labelnames", ()))
