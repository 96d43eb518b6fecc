"""The dashboard: its queries ask for what is exported and recorded, and its panels lie beside each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from dispatcher.gpu.group import FALLBACK_REASONS
from tests.deploy.conftest import DEPLOY
from tests.deploy.promql import Metrics, matchers, result_labels
from tests.deploy.test_prometheus import VALUES, recorded

FOLDER = DEPLOY / "grafana"
BOARD = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
SUBJECTS = ("latency", "host cpu of a request", "batch size", "ladder hits", "queue", "refusals", "gpu memory")


def plain(expression: str) -> str:
    """A query without Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("[1m]", "[5m]")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_queries_ask_for_what_is_exported(panel: dict[str, Any], exported: Metrics) -> None:
    """Each query names metrics and labels that exist; each legend names labels that the result has."""
    known = recorded(exported)
    assert panel["targets"]
    for target in panel["targets"]:
        labels = result_labels(plain(target["expr"]), known)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
        for metric, label, value in matchers(plain(target["expr"])):
            assert value in VALUES[label], (metric, label)
        assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_heat_maps_show_buckets(exported: Metrics) -> None:
    """A heat map is one for each route, made of the buckets as they are exported."""
    maps = [panel for panel in PANELS if panel["type"] == "heatmap"]
    assert {panel["title"] for panel in maps} >= {"Latency, CPU route", "Latency, GPU route"}
    for panel in maps:
        (target,) = panel["targets"]
        assert target["format"] == "heatmap"
        assert result_labels(plain(target["expr"]), exported) == {"le"}


def test_variables_ask_for_what_is_exported(exported: Metrics) -> None:
    """Choices of a variable come from a label that exists; each variable of a query is one of the dashboard."""
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    for variable in variables.values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert found[2] in result_labels(found[1], exported)
    used = re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))
    assert set(used) - {"__rate_interval"} <= variables.keys()


def test_annotations_ask_for_what_is_exported(exported: Metrics) -> None:
    """Starts of the service are marked."""
    for annotation in BOARD["annotations"]["list"]:
        labels = result_labels(plain(annotation["expr"]), exported)
        assert set(re.findall(r"\{\{(\w+)\}\}", annotation["titleFormat"])) <= labels


def test_fallbacks_are_there_before_the_first_one(exposition: str) -> None:
    """Every reason has a counter from the start: a rate does not see an event that brings its counter along."""
    found = set(re.findall(r'^sidetok_gpu_fallbacks_total\{gpu="0",reason="([^"]+)"\} 0', exposition, re.M))
    assert found == set(FALLBACK_REASONS)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_an_operator_asks_has_a_panel(subject: str) -> None:
    """The questions of docs/operations.md are answered here."""
    assert any(subject in panel["title"].lower() for panel in PANELS)


def test_panels_do_not_overlap() -> None:
    """Each panel has a place of its own inside the grid, and an id of its own."""
    cells: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        area = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & area, panel["title"]
        cells |= area
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_dashboard_is_found() -> None:
    """Grafana is told where the dashboard lies, and the data source that it gets exists."""
    (provider,) = yaml.safe_load((FOLDER / "dashboards.yaml").read_text(encoding="utf-8"))["providers"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["grafana"]
    mounted = dict(volume.rsplit(":", 1)[0].split(":") for volume in compose["volumes"])
    assert mounted["./grafana/dashboard.json"].rsplit("/", 1)[0] == provider["options"]["path"]
    assert all((DEPLOY / path).is_file() for path in mounted)
    assert compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == mounted["./grafana/dashboard.json"]
    (source,) = yaml.safe_load((FOLDER / "datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
