"""The manifests: built by kustomize, valid for Kubernetes, consistent, and their arguments start the service."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

from service.options import ServiceOptions
from service.settings import parse_serve
from tests.deploy.conftest import DEPLOY, image_environ, run, tool
from tests.deploy.promql import Metrics
from tests.end_to_end.harness import PROGRAM, ServiceProcess, Wire, encode

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = ("base", "service", "service-gpu", "sidecar-sglang", "sidecar-sglang-cpu", "sidecar-vllm", "sidecar-dynamo")
SIDECARS = tuple(name for name in OVERLAYS if name.startswith("sidecar"))
SHARED = {"sidecar-sglang": "MPS", "sidecar-vllm": "TimeSlicing"}
VERSIONS = ("1.34", "1.37")
"""The first one that has everything that is used here, and the newest with a schema."""
CUSTOM = {"ServiceMonitor": ServiceMonitor}
"""Models of kinds that Kubernetes itself has no schema for."""


@cache
def built(overlay: str) -> tuple[dict[str, Any], ...]:
    """The objects of an overlay, as `kubectl apply -k` would send them."""
    return tuple(yaml.safe_load_all(run(tool("kubectl"), "kustomize", str(FOLDER / overlay))))


def find(overlay: str, kind: str) -> dict[str, Any]:
    """The only object of a kind."""
    (found,) = (thing for thing in built(overlay) if thing["kind"] == kind)
    return found


def pod(overlay: str) -> dict[str, Any]:
    """The pod of an overlay's Deployment."""
    spec: dict[str, Any] = find(overlay, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(overlay: str) -> dict[str, Any]:
    """The container that runs sidetok."""
    spec = pod(overlay)
    (found,) = (one for one in [*spec.get("initContainers", ()), *spec["containers"]] if one["name"] == "sidetok")
    return dict(found)


def environ(overlay: str) -> dict[str, str]:
    """The settings in its environment: those of the image, and over them those of the manifest."""
    image = {name: value for name, value in image_environ().items() if name.startswith("SIDETOK_")}
    return {**image, **{variable["name"]: variable["value"] for variable in container(overlay)["env"]}}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_the_objects(overlay: str, version: str) -> None:
    """Each object is valid, without a field that Kubernetes does not know."""
    for thing in built(overlay):
        if thing["kind"] not in CUSTOM:
            kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("overlay", ["service", "service-gpu"])
def test_the_operator_accepts_the_monitor(overlay: str) -> None:
    """The Prometheus operator knows every field, and each value is one that it allows."""
    monitor = find(overlay, "ServiceMonitor")
    assert understood(monitor) == monitor


def test_a_misspelt_field_is_seen() -> None:
    """The check above is one: a field that the operator does not know does not come back."""
    monitor = changed_endpoint(intervall="15s")
    assert understood(monitor) != monitor


@pytest.mark.parametrize("wrong", [{"interval": "15 s"}, {"port": 8400}, {"scheme": "ftp"}], ids=str)
def test_a_wrong_value_is_refused(wrong: dict[str, object]) -> None:
    """Forms and types of values are the operator's."""
    with pytest.raises(ValueError, match=rf"endpoints\.0\.{next(iter(wrong))}"):
        understood(changed_endpoint(**wrong))


def changed_endpoint(**fields: object) -> dict[str, Any]:
    """The fleet's monitor with other fields of its endpoint."""
    monitor = copy.deepcopy(find("service", "ServiceMonitor"))
    monitor["spec"]["endpoints"][0] |= fields
    return monitor


def understood(thing: dict[str, Any]) -> Any:
    """What is left of an object after its operator's model has read it; `ValueError` for a wrong value."""
    return CUSTOM[thing["kind"]].model_validate(thing).model_dump(by_alias=True, exclude_unset=True, mode="json")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_are_understood(overlay: str) -> None:
    """Every argument is a flag of the service, and every variable is one of its settings."""
    command, *arguments = container(overlay)["args"]
    service, work, gpu = parse_serve(arguments, environ(overlay))
    assert command == "serve"
    assert service.host == "0.0.0.0"
    mounts = {mount["mountPath"] for mount in container(overlay)["volumeMounts"]}
    assert work.cache_dir in mounts
    assert gpu.gpus == ("auto" if overlay in {"service-gpu", *SHARED} else "none")
    assert bool(service.uds) == (overlay in SIDECARS)
    assert not service.uds or str(Path(service.uds).parent) in mounts


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_drain_is_not_cut_short(overlay: str) -> None:
    """The pause before SIGTERM and the drain together end before the grace period does."""
    service, _, _ = parse_serve(container(overlay)["args"][1:], {})
    pause_s = container(overlay).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod(overlay)["terminationGracePeriodSeconds"] > pause_s + service.drain_timeout_s
    assert service.drain_timeout_s >= ServiceOptions().drain_timeout_s


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_probes_ask_what_they_should(overlay: str) -> None:
    """Traffic follows /ready; a restart follows /live only, which models and load do not touch."""
    probes = {kind: container(overlay)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert (probes["liveness"]["path"], probes["readiness"]["path"]) == ("/live", "/ready")
    assert probes["startup"]["path"] == ("/ready" if overlay in SIDECARS else "/live")
    (port,) = container(overlay)["ports"]
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    service, _, _ = parse_serve(container(overlay)["args"][1:], {})
    assert port["containerPort"] == service.port


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_have_no_rights(overlay: str) -> None:
    """Nothing is written but to volumes, no capability is left, and the user is root only where MPS needs it."""
    security = {**pod(overlay).get("securityContext", {}), **container(overlay)["securityContext"]}
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert (security["runAsUser"] == 0) == (SHARED.get(overlay) == "MPS")


@pytest.mark.parametrize("overlay", SIDECARS)
def test_a_sidecar_outlives_the_engine(overlay: str) -> None:
    """It starts first and ends last, and the engine sees the folder of its socket."""
    assert container(overlay)["restartPolicy"] == "Always"
    (engine,) = pod(overlay)["containers"]
    shared = {mount["name"] for mount in engine["volumeMounts"]} & {
        mount["name"] for mount in container(overlay)["volumeMounts"]
    }
    assert {"sidetok-socket", "models"} <= shared
    named = {volume["name"] for volume in pod(overlay)["volumes"]}
    used = {mount["name"] for one in (engine, container(overlay)) for mount in one["volumeMounts"]}
    assert used == named


@pytest.mark.parametrize("overlay", SIDECARS)
def test_a_gpu_is_shared_or_left_alone(overlay: str) -> None:
    """With a shared GPU both containers hold the same claim; without, the sidecar holds none."""
    (engine,) = pod(overlay)["containers"]
    claims = [one["resources"].get("claims") for one in (engine, container(overlay))]
    if overlay not in SHARED:
        assert claims == [None, None]
        return
    assert claims == [[{"name": "gpu"}]] * 2
    assert "nvidia.com/gpu" not in engine["resources"].get("limits", {})
    template = find(overlay, "ResourceClaimTemplate")
    (reference,) = pod(overlay)["resourceClaims"]
    assert reference["resourceClaimTemplateName"] == template["metadata"]["name"]
    (config,) = template["spec"]["spec"]["devices"]["config"]
    assert config["opaque"]["parameters"]["sharing"]["strategy"] == SHARED[overlay]
    assert container(overlay)["image"].endswith("-cuda13")


@pytest.mark.parametrize("overlay", ["base", "service", "service-gpu"])
def test_selectors_find_the_pods(overlay: str) -> None:
    """Service, budget, policy, monitor and spread all mean the pods of the Deployment."""
    labels = find(overlay, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert find(overlay, "Service")["spec"]["selector"].items() <= labels
    if overlay == "base":
        return
    assert find(overlay, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert find(overlay, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    for spread in pod(overlay)["topologySpreadConstraints"]:
        assert spread["labelSelector"]["matchLabels"].items() <= labels
    monitor = find(overlay, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= find(overlay, "Service")["metadata"]["labels"].items()
    assert find(overlay, "Service")["metadata"]["labels"][monitor["jobLabel"]] == "sidetok"
    (port,) = find(overlay, "Service")["spec"]["ports"]
    assert monitor["endpoints"][0]["port"] == port["name"]
    assert all(thing["metadata"]["namespace"] == "sidetok" for thing in built(overlay) if thing["kind"] != "Namespace")


def test_the_fleet_follows_its_load(exported: Metrics) -> None:
    """The autoscaler owns the number of replicas, and its metric is one that the service exports."""
    scaler = find("service", "HorizontalPodAutoscaler")["spec"]
    assert "replicas" not in find("service", "Deployment")["spec"]
    assert scaler["minReplicas"] > find("service", "PodDisruptionBudget")["spec"]["maxUnavailable"]
    (name,) = (metric["pods"]["metric"]["name"] for metric in scaler["metrics"] if metric["type"] == "Pods")
    assert name in exported
    (rule,) = yaml.safe_load((FOLDER / "service" / "adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]
    assert rule["seriesQuery"].split("{")[0] == name


def test_the_cache_is_shared_by_the_fleet() -> None:
    """All replicas mount one claim, which several nodes may mount at once."""
    (volume,) = (volume for volume in pod("service")["volumes"] if volume["name"] == "cache")
    claim = find("service", "PersistentVolumeClaim")
    assert volume == {"name": "cache", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_memory_budget_is_the_limit(overlay: str) -> None:
    """The alert on memory knows the limit of the manifests."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert rules[0] == {"record": "sidetok:memory_budget_bytes", "expr": "vector(8 * 1024 * 1024 * 1024)"}
    assert container(overlay)["resources"]["limits"]["memory"] == "8Gi"


@pytest.fixture(params=["base", "sidecar-dynamo"])
def started(request: pytest.FixtureRequest, folder: Path, home: Path) -> Iterator[ServiceProcess]:
    """A process with the arguments and the environment of a manifest; only what names a place is another."""
    arguments = [moved(argument, folder, home) for argument in container(request.param)["args"][1:]]
    settings = [f"{name}={value}" for name, value in environ(request.param).items() if name != "SIDETOK_CACHE_DIR"]
    process = ServiceProcess(folder, cache_dir=home / "cache", program=("env", *settings, *PROGRAM, *arguments))
    yield process
    process.stop()


def moved(argument: str, folder: Path, home: Path) -> str:
    """An argument of a container as it has to be here."""
    places = {"--uds=": str(folder / "s"), "--model=": f"model={home / 'tokenizer.json'}", "--host=": "127.0.0.1"}
    flag = next((flag for flag in places if argument.startswith(flag)), None)
    return flag + places[flag] if flag else argument


def test_the_arguments_start_the_service(started: ServiceProcess) -> None:
    """It listens, becomes ready, answers the probes and a request, and ends in time when it is told to."""
    started.wait_ready()
    with started.client() as client:
        assert [client.get(path).status_code for path in ("/live", "/ready")] == [200, 200]
    assert Wire(started.connect(uds=True)).ask(encode("Hello")).status == 200
    started.signal()
    assert started.wait_exit() == 0
