"""A dispatcher with a GPU of this process whose long texts are launched from C, and the module that does it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from dispatcher.dispatcher import Dispatcher
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.tokenizer import Tokenizer
from gpu_core.errors import SidetokError
from tests.data import tokenizer_json
from tests.direct_gpu import DirectDevice, direct_gpu
from tests.dispatcher.group_caller import PLAIN
from tests.engine_rig import LIMIT_S

if TYPE_CHECKING:
    from dispatcher.gpu.native_way import NativeWay

FOLDER = Path(__file__).resolve().parents[2] / "dispatcher" / "gpu"
LONG = 300_000
PREDICTED_NS = 50_000
"""How long replays are thought to take at the beginning."""


@cache
def native_module() -> ModuleType:
    """`dispatcher.gpu.native_way` of a compiled package, made here; skips the test where there is no compiler."""
    name = "dispatcher.gpu.native_way"
    compiler, include = shutil.which("cc"), sysconfig.get_path("include")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    library = Path(mkdtemp(prefix="sidetok-")) / "native_way.so"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-Wno-missing-field-initializers"]
    sources = [str(FOLDER / f"{part}.c") for part in ("native_way", "native_module", "native_ending")]
    headers = [f"-I{include}", f"-I{np.get_include()}"]
    command = [compiler, "-O2", *warnings, "-shared", "-fPIC", *headers, *sources, "-o", str(library)]
    try:
        subprocess.run(command, check=True, timeout=120)
        spec = spec_from_file_location(name, library, loader=ExtensionFileLoader(name, str(library)))
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        shutil.rmtree(library.parent)
    return module


class NativeCalls:
    """Calls of one reserved text each, driven by the test, on a device that gives every four bytes as an id."""

    def __init__(self, tokenizer: Tokenizer, folder: Path, device: DirectDevice, **options: Any) -> None:
        """`native_module` is in `sys.modules` already."""
        self.device, self.tokenizer = device, tokenizer
        named: dict[str, Any] = {"gpus": "0", "gpu_engine": "local", "gpu_classes_kib": "4,512", "gpu_contexts": 8}
        gpu_options = GpuRouteOptions(**named, gpu_watchdog_s=options.pop("gpu_watchdog_s", LIMIT_S))
        make_gpu = direct_gpu(lambda: device)
        self.gpus = Gpus(gpu_options, ThreadClocks(), folder, calibrate=False, driven=True, make_gpu=make_gpu)
        settings = DispatcherOptions(cpu_workers=1, **({"policy": "gpu"} | options))
        self.dispatcher = Dispatcher(settings, lambda _: None, gpus=self.gpus)
        self.results: deque[tuple[bytes, EncodedGroup | None, SidetokError | None]] = deque()
        """Of each call that ended: its text, and what it was told."""
        self.gpus.start()
        self.gpus.add(tokenizer, tokenizer_json("byte_bpe"))
        self.until(lambda: self.gpus.serves(tokenizer.spec.digest))
        for place in self.link._places.values():
            place.predictions[0].seen(LONG, PREDICTED_NS, False)

    @property
    def link(self) -> LocalLink:
        """Of the engine."""
        driver = self.gpus.driver
        assert driver is not None
        link = driver._local
        assert link is not None
        return link

    @property
    def native(self) -> NativeWay:
        """What launches from C."""
        native = self.link.native
        assert isinstance(native, sys.modules["dispatcher.gpu.native_way"].NativeWay)
        return cast("NativeWay", native)

    def rest(self, seconds: float = 0.01) -> bool:
        """Drive."""
        driver = self.gpus.driver
        assert driver is not None
        return driver.rest(seconds)

    def until(self, condition: Callable[[], object]) -> None:
        """Drive until a condition holds."""
        until_s = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < until_s
            self.rest()

    def reserved(self, text: bytes) -> ReservedText:
        """A text in a slot."""
        reserved = self.dispatcher.reserve(self.tokenizer, len(text))
        assert reserved.lease is not None
        reserved.data[:] = text
        return reserved

    def start(self, text: bytes, **more: Any) -> Any:
        """Call."""
        return self.submit(self.reserved(text), text, **more)

    def submit(self, document: Any, text: bytes, **more: Any) -> Any:
        """Call with a document that is this text."""

        def on_done(result: EncodedGroup | None, error: SidetokError | None) -> None:
            self.results.append((text, result, error))

        asked: dict[str, Any] = {"options": PLAIN, "route": "gpu"} | more
        return self.dispatcher.encode_group(self.tokenizer, [document], on_done, **asked)

    def complete(self) -> None:
        """All replays end."""
        self.device.is_held = False
        for context in self.device.contexts:
            context.complete()

    def right(self, n: int = 1) -> list[Any]:
        """The next `n` calls end with the ids of their own texts, which are returned."""
        self.until(lambda: len(self.results) >= n)
        found = []
        for _ in range(n):
            text, result, error = self.results.popleft()
            assert error is None
            assert result is not None
            assert (result.route, result.n_tokens) == ("gpu", [len(text) // 4])
            assert bytes(result.ids[0]) == text[: len(text) // 4 * 4]
            found.append(result.ids[0])
        return found

    def opened(self) -> None:
        """From here on texts are launched from C."""
        for seed in range(2):
            self.start(text_of(LONG, seed))
            self.right()
        self.until(lambda: self.native.is_quiet)
        self.device.n_direct = self.device.n_launched = 0

    def close(self) -> None:
        """End it."""
        self.gpus.close()
        self.dispatcher.close()


def text_of(n_bytes: int = LONG, seed: int = 1) -> bytes:
    """A text."""
    return np.random.default_rng(seed).integers(97, 123, n_bytes, np.uint8).tobytes()
