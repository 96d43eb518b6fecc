"""Rules and alerts: they parse, they ask for what the service exports, and they fire when they should."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from dispatcher.admission import REASONS as SHED_REASONS
from dispatcher.gpu.group import FALLBACK_REASONS
from service.errors import TABLE
from service.gpu_metrics import STATES
from tests.deploy.conftest import DEPLOY, run, tool
from tests.deploy.promql import Metrics, matchers, result_labels
from tests.end_to_end.harness import ROOT

FOLDER = DEPLOY / "prometheus"
VALUES = {
    "outcome": {"ok", "equal", "mismatch", "dropped", "failed", *(status.outcome for status in TABLE.values())},
    "route": {"cpu", "gpu"},
    "state": {*STATES, "loading", "ready", "failed"},
    "kind": {"total", "free"},
    "reason": {*SHED_REASONS, *FALLBACK_REASONS},
    "job": {"sidetok"},
}


def read(name: str) -> Any:
    """One of the files."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a file, in the order of evaluation."""
    return [rule for group in read(name)["groups"] for rule in group["rules"]]


ALERTS = rules("alerts.yaml")


def recorded(exported: Metrics) -> Metrics:
    """What is exported, and what the rules record from it."""
    known = dict(exported)
    for rule in rules("rules.yaml"):
        known[rule["record"]] = result_labels(rule["expr"], known)
    return known


def test_rules_ask_for_what_is_exported(exported: Metrics) -> None:
    """Each rule names metrics, labels and groupings that exist; a rule may use those before it."""
    assert recorded(exported).keys() - exported.keys() == {rule["record"] for rule in rules("rules.yaml")}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_ask_for_what_is_exported(alert: dict[str, Any], exported: Metrics) -> None:
    """An alert's expression and its texts name metrics and labels that exist; each label of a text is one of it."""
    labels = result_labels(alert["expr"], recorded(exported))
    texts = " ".join(alert["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels
    assert alert["labels"]["severity"] in {"page", "ticket"}


def test_values_of_labels_exist() -> None:
    """A value that is asked for is one that the service can give."""
    for rule in [*rules("rules.yaml"), *ALERTS]:
        for metric, label, value in matchers(rule["expr"]):
            assert value in VALUES[label], (metric, label)


def test_every_alert_has_its_paragraph() -> None:
    """What to do about an alert stands where its text says."""
    for alert in ALERTS:
        page, anchor = alert["annotations"]["runbook"].split("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
        assert anchor == alert["alert"].lower()
        assert alert["alert"] in headings


def test_every_alert_is_tested() -> None:
    """Each alert fires in a unit test, and each stays silent in one."""
    cases = [case for test in read("alerts_test.yaml")["tests"] for case in test["alert_rule_test"]]
    for alert in ALERTS:
        fires = {bool(case.get("exp_alerts")) for case in cases if case["alertname"] == alert["alert"]}
        assert fires == {True, False}, alert["alert"]


def test_promtool_accepts_the_configuration() -> None:
    """The configuration and its rule files are valid."""
    run(tool("promtool"), "check", "config", str(FOLDER / "prometheus.yaml"))


def test_promtool_runs_the_unit_tests() -> None:
    """Alerts fire, and stay silent, as the scripted series demand."""
    run(tool("promtool"), "test", "rules", str(FOLDER / "alerts_test.yaml"))


def test_promtool_finds_no_fault_in_the_exposition(exposition: str) -> None:
    """Names, help texts and types follow Prometheus' own rules."""
    run(tool("promtool"), "check", "metrics", text=exposition)
