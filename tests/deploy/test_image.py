"""The image without Docker: its file is clean, its packages are locked, and its steps make a service that runs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deploy.docker.kernels import ARCHITECTURES, variants
from gpu_core.cuda import compile_ahead, cupy
from gpu_core.errors import DeviceUnavailable
from gpu_core.layout import kernel_directory
from gpu_core.tables import BRIDGE_FAMILY, FAMILIES
from service.settings import parse_serve
from tests.deploy.conftest import DEPLOY, HANG_S, image_environ, instructions, run, tool
from tests.deploy.test_kubernetes import container, pod
from tests.end_to_end.harness import ROOT, ServiceProcess, Wire, encode
from tests.gpu_core.test_nvrtc import ARCHITECTURES as COMPILED

FOLDER = DEPLOY / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"cpu": (), "cuda12": ("cuda12",), "cuda13": ("cuda13",)}


def locked(name: str) -> dict[str, list[Requirement]]:
    """The requirements of a lock by name; there may be several for different Pythons. Each must have a hash."""
    text = (FOLDER / f"requirements-{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    found: dict[str, list[Requirement]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement, _, hashes = line.partition("--hash=")
            assert re.fullmatch(r"sha256:[0-9a-f]{64}(\s+--hash=sha256:[0-9a-f]{64})*", hashes.strip()), line
            parsed = Requirement(requirement.strip())
            found.setdefault(parsed.name.lower(), []).append(parsed)
    return found


def test_hadolint_finds_no_fault() -> None:
    """The linter of Dockerfiles has nothing to say."""
    run(tool("hadolint"), "--failure-threshold", "style", str(ROOT / "Dockerfile"))


def test_no_shell_is_needed_to_run() -> None:
    """What is run is given as a list; nobody parses it, and the user is not root."""
    (entry,), (command,), (health,) = (instructions(name) for name in ("ENTRYPOINT", "CMD", "HEALTHCHECK"))
    assert (json.loads(entry), json.loads(command)) == (["sidetok"], ["serve"])
    assert json.loads(health.split("CMD", 1)[1])[:2] == ["python", "-m"]
    assert instructions("USER") == ["10001:10001"]
    assert len(instructions("FROM")) == 2


def test_the_image_is_labelled() -> None:
    """Title, description, licence, version and revision, as the OCI names them."""
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", " ".join(instructions("LABEL"))))
    assert labels >= {"title", "description", "licenses", "version", "revision"}


def test_variables_are_settings() -> None:
    """What the image sets is understood by the service, and its folders are there for its user."""
    environ = image_environ()
    service, work, _ = parse_serve([], environ)
    assert (service.host, service.log_format) == ("0.0.0.0", "json")
    volumes = json.loads(instructions("VOLUME")[0])
    assert volumes == [str(Path(service.uds).parent), work.cache_dir]
    assert environ["CUPY_CACHE_DIR"] == f"{work.cache_dir}/kernels"
    assert str(service.port) in instructions("EXPOSE")


@pytest.mark.parametrize("variant", EXTRAS)
def test_locks_fit_the_project(variant: str) -> None:
    """Each dependency is locked to one version that the project allows; `scripts/lock` makes them anew."""
    wanted = [*PROJECT["dependencies"], *(d for e in EXTRAS[variant] for d in PROJECT["optional-dependencies"][e])]
    found = locked(variant)
    for requirement in map(Requirement, wanted):
        for pin in found[requirement.name.lower()]:
            ((_, version),) = ((s.operator, s.version) for s in pin.specifier)
            assert requirement.specifier.contains(Version(version)), requirement.name
    assert ("nvidia-cuda-nvrtc" in " ".join(found)) == (variant != "cpu")


def needed_to_compile() -> list[str]:
    """What `setup.py` says that it needs."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    values = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    needed: list[str] = ast.literal_eval(values["NEEDS"])
    return needed


def test_the_build_is_locked() -> None:
    """What builds the package, and what compiles it, is locked, too."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    needed, found = [*wanted, *needed_to_compile()], locked("build")
    assert len(needed) == 3
    for requirement in map(Requirement, needed):
        (pin,) = found[requirement.name]
        assert requirement.specifier.contains(str(pin.specifier).removeprefix("=="))


def test_the_image_is_compiled() -> None:
    """The stage that builds has a compiler and compiles; the other one installs nothing, so there is none in it."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    _, build, final = re.split(r"^FROM ", text, flags=re.M)
    assert re.search(r"apt-get install [^&]*\bgcc\b", build)
    assert re.search(r"SIDETOK_COMPILE=1 deploy/docker/install program\b", build)
    assert not re.search(r"\b(apt-get|gcc|pip)\b", final)


def test_docker_sees_what_the_program_is_made_of() -> None:
    """Nothing that the step copies is ignored by Docker, and it copies what compiles."""
    step = (FOLDER / "install").read_text(encoding="utf-8")
    ((*sources, _target),) = (line.split()[2:] for line in step.splitlines() if line.strip().startswith("cp -R"))
    seen = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()}
    assert {"setup.py", "pyproject.toml", "dispatcher"} <= set(sources) <= seen


def test_every_variant_has_a_lock() -> None:
    """The variants that the Dockerfile names are those that can be installed."""
    assert {path.stem.removeprefix("requirements-") for path in FOLDER.glob("requirements-*.txt")} == {*EXTRAS, "build"}
    first = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()[1]
    assert "|".join(EXTRAS) in first


def test_kernels_of_every_family_are_compiled_ahead() -> None:
    """For the GPUs for which they are known to compile, with the macros that tokenizers lead to."""
    assert {f"sm_{architecture}" for architecture in ARCHITECTURES} == set(COMPILED)
    encode = [defines["SIDETOK_FAMILY"] for name, defines in variants() if name == "encode"]
    assert encode == [*FAMILIES.values(), BRIDGE_FAMILY]
    kernels = {path.stem for path in kernel_directory().glob("*.cu")}
    assert kernels - {"encode"} == {name for name, defines in variants() if not defines}


@pytest.mark.skipif(cupy is not None, reason="CuPy is installed")
def test_kernels_need_cupy() -> None:
    """Without it nothing is compiled, and the message says what is missing."""
    with pytest.raises(DeviceUnavailable, match="cuda13"):
        compile_ahead({}, "decode", "90")


@pytest.mark.parametrize("overlay", ["service-gpu", "sidecar-sglang", "sidecar-vllm"])
def test_kernels_reach_the_volume(overlay: str, tmp_path: Path) -> None:
    """Before the service starts its kernels are copied to the volume that hides them; the command does it."""
    first = pod(overlay)["initContainers"][0]
    assert first["name"] == "kernels"
    (mount,) = first["volumeMounts"]
    caches = {one["name"]: one.get("volumeMounts", []) for one in pod(overlay)["initContainers"][1:]}
    caches |= {one["name"]: one.get("volumeMounts", []) for one in pod(overlay)["containers"]}
    assert {"name": mount["name"], "mountPath": "/var/cache/sidetok"} in caches["sidetok"]
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "a.cubin").write_bytes(b"code")
    # Root without capabilities adds no kernel to somebody else's folder.
    assert user(overlay, first) == user(overlay, container(overlay))
    program, flag, code = first["command"]
    code = code.replace("/var/cache/sidetok/kernels", str(tmp_path / "image"))
    for _ in range(2):
        run(sys.executable, flag, code.replace(mount["mountPath"], str(tmp_path / "volume")))
    assert program == "python"
    assert (tmp_path / "volume" / "kernels" / "a.cubin").read_bytes() == b"code"


def user(overlay: str, one: dict[str, Any]) -> int:
    """Who runs a container."""
    return int({**pod(overlay).get("securityContext", {}), **one["securityContext"]}["runAsUser"])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image has in /opt/sidetok, made by the steps of the Dockerfile."""
    prefix = tmp_path_factory.mktemp("image") / "sidetok"
    steps = str(FOLDER / "install")
    # Byte code is for faster starts only.
    run(steps, "dependencies", "cpu", str(prefix), PIP_NO_COMPILE="1")
    run(steps, "program", str(prefix))
    run(steps, "kernels", "cpu", str(prefix), str(prefix.parent / "kernels"))
    return prefix


@pytest.fixture(scope="module")
def started(installed: Path, home: Path) -> Iterator[ServiceProcess]:
    """The entry point of the image, with nothing in its environment, no shell on its path, and none of this source."""
    program = ("env", "-i", f"PATH={installed / 'bin'}", str(installed / "bin" / "sidetok"), "serve")
    process = ServiceProcess(
        home, f"--model=small={home / 'tokenizer.json'}", uds=home / "i", cache_dir=home / "cache", program=program
    )
    yield process
    process.stop()


def test_kernels_are_those_of_the_program(installed: Path, tmp_path: Path) -> None:
    """They are compiled from the installed source: CuPy would not find them again if they came from another folder."""
    command = [str(FOLDER / "install"), "kernels", "cuda13", str(installed), str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    # The CPU variant has no CuPy: the step ends with a trace, which names the files that ran.
    assert "CuPy is not installed" in result.stderr
    ran = re.findall(r'File "([^"]+/(?:deploy|gpu_core)/[^"]+)"', result.stderr)
    assert len(ran) > 1
    assert {Path(file).is_relative_to(installed) for file in ran} == {True}, ran


def healthcheck(installed: Path, **environ: str) -> int:
    """Exit status of the image's health check."""
    (health,) = instructions("HEALTHCHECK")
    _, *arguments = json.loads(health.split("CMD", 1)[1])
    command = [str(installed / "bin" / "python"), *arguments]
    return subprocess.run(command, env=environ, cwd="/", timeout=HANG_S, check=False).returncode


def test_the_steps_make_a_service_that_runs(installed: Path, started: ServiceProcess) -> None:
    """It serves, its health check follows /ready on TCP and on a Unix socket, and pip has left."""
    started.wait_ready()
    assert Wire(started.connect(uds=True)).ask(encode("Hello")).status == 200
    # It is tried again where it is used, too: two seconds may be too few for an answer.
    started.eventually(lambda: healthcheck(installed, SIDETOK_PORT=str(started.port)) == 0)
    started.eventually(lambda: healthcheck(installed, SIDETOK_HOST="", SIDETOK_UDS=str(started.uds)) == 0)
    assert healthcheck(installed, SIDETOK_HOST="", SIDETOK_UDS=str(started.uds) + "none") == 1
    assert not {"pip", "setuptools"} & {path.name for path in installed.glob("lib/python3*/site-packages/*")}
