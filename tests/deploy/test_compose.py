"""The compose files: Compose itself accepts them, and they agree with the service's settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from service.options import ServiceOptions
from service.settings import Setting, settings_of
from tests.deploy.conftest import DEPLOY, run, tool

COMPOSE = str(DEPLOY / "compose.yaml")
GPU = str(DEPLOY / "compose.gpu.yaml")
STOP_AFTER: Setting = next(s for s in settings_of(ServiceOptions) if s.field == "drain_timeout_s")


def config(*files: str, **environ: str) -> Any:
    """What Compose makes of its files, checked against its schema."""
    flags = [flag for file in files for flag in ("-f", file)]
    return json.loads(run(tool("docker-compose"), *flags, "config", "--format", "json", **environ))


def test_compose_accepts_the_files() -> None:
    """Both variants are valid, and the second one asks for GPUs."""
    plain = config(COMPOSE)["services"]
    assert plain.keys() == {"sidetok", "prometheus", "grafana"}
    assert plain["sidetok"]["build"]["args"] == {"VARIANT": "cpu"}
    with_gpus = config(COMPOSE, GPU, SIDETOK_VARIANT="cuda13")["services"]["sidetok"]
    assert with_gpus["build"]["args"] == {"VARIANT": "cuda13"}
    (device,) = with_gpus["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_the_drain_is_not_cut_short() -> None:
    """The service is killed only after the drain has had its time."""
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["sidetok"]
    assert STOP_AFTER.parse(service["stop_grace_period"]) > STOP_AFTER.default


def test_prometheus_scrapes_the_service() -> None:
    """The name and the port that Prometheus looks up are those of the service."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
    (target,) = scrape["scrape_configs"][0]["dns_sd_configs"]
    assert target["names"] == ["sidetok"]
    assert any(port.endswith(f":{target['port']}") for port in services["sidetok"]["ports"])
    assert "./prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]


@pytest.mark.parametrize("service", ["sidetok", "prometheus", "grafana"])
def test_nothing_listens_for_strangers(service: str) -> None:
    """Ports are those of this machine only: there is no TLS and no password worth the name."""
    ports = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"][service]["ports"]
    assert all(port.startswith("127.0.0.1:") for port in ports)
