"""An engine process without a GPU: python -m tests.dispatcher.host_engine SCRIPT ... (see `HostEngine`).

The reference encodes; what goes wrong is scripted.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenizers

from dispatcher.gpu.child import python_command
from dispatcher.gpu.engine_process import main
from gpu_core.doubts import Doubts
from gpu_core.errors import DeviceUnavailable
from gpu_core.execution import Gpu
from gpu_core.host_device import EncodeOne, HostDevice, HostGpu
from gpu_core.layout import REASON_NOT_NORMAL
from gpu_core.normal_form import passes_quick_check
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables


@dataclass(frozen=True)
class HostEngine:
    """What the process does."""

    files: dict[str, str]
    """Paths of tokenizer.json by digest."""
    polls: int = 1
    """At which look a replay is complete."""
    replay_s: float = 0.0
    """How long a replay takes at least."""
    hang_after: int = 1 << 62
    """Launches of one tokenizer after which no replay ends any more."""
    fail_after: int = 1 << 62
    """Launches of one tokenizer after which the device is dead."""
    memory_bytes: int = 1 << 62
    unavailable: str = ""
    """Why there is no GPU."""
    crash_while: str = ""
    """The process dies at its start while this file exists."""
    hang_while: str = ""
    """While this file exists, the process hangs where the file says: `start` or `load`. It makes `hung` beside it."""
    slow_s: float = 0.0
    """How long a tokenizer takes to be set up, ..."""
    slow_while: str = ""
    """... and as long as this file exists."""
    n_gpus: int = 1
    quick_check: bool = False
    """Documents that NFC may change need the CPU, and what is said to be in normal form is not normalized."""
    normalizes: bool = False
    """The device brings these documents into normal form, but for those with a Hangul jamo in them, ..."""
    at_once: bool = False
    """... and where such text is the rule, does so without a first replay."""

    def command(self) -> list[str]:
        """What a link starts."""
        return [*python_command("tests.dispatcher.host_engine"), json.dumps(asdict(self))]

    def gpu(self, options: GpuOptions) -> Gpu:
        """The GPU of the process."""
        if self.crash_while and Path(self.crash_while).exists():
            os._exit(9)
        self._hang("start")
        if self.unavailable:
            raise DeviceUnavailable(self.unavailable)
        gpu = HostGpu(self._device)
        gpu.n_gpus = self.n_gpus
        return gpu

    def _hang(self, where: str) -> None:
        """Forever, holding the interpreter's lock as a hung driver call may, if the file says so."""
        if self.hang_while and Path(self.hang_while).exists() and Path(self.hang_while).read_text() == where:
            Path(self.hang_while).with_name("hung").touch()
            ctypes.PyDLL(None).pause()

    def _device(self, key: str, tables: Tables) -> HostDevice:
        self._hang("load")
        time.sleep(self.slow_s)
        while self.slow_while and Path(self.slow_while).exists():
            time.sleep(0.01)
        text = Path(self.files[key]).read_text()
        encode = reference_pairs(text)
        return HungDevice(
            quickly_checked(encode) if self.quick_check else encode,
            encode_normal=reference_pairs(text, normalizes=False),
            normalize=normal_form if self.normalizes else None,
            doubts=Doubts() if self.at_once else None,
            memory_bytes=self.memory_bytes,
            polls=self.polls,
            replay_s=self.replay_s,
            fail_after=self.fail_after,
            token_starts=False,
        ).after(self.hang_after)


class HungDevice(HostDevice):
    """A device whose replays do not end from some launch on, though it seems alive."""

    def after(self, n_launches: int) -> HungDevice:
        """Hang after so many launches."""
        self._limit = n_launches
        return self

    @property
    def polls(self) -> int:
        """Looks that the replay launched last needs."""
        return self._polls if self.n_launches <= self._limit else 1 << 62

    @polls.setter
    def polls(self, polls: int) -> None:
        self._polls = polls


def quickly_checked(encode: EncodeOne) -> EncodeOne:
    """Behind the quick check of a device for NFC."""

    def checked(document: bytes) -> Sequence[tuple[int, int]] | int:
        is_normal = passes_quick_check(document.decode(errors="replace"))
        return encode(document) if is_normal else REASON_NOT_NORMAL

    return checked


def normal_form(document: bytes) -> bytes | None:
    """NFC of a document without Hangul jamo; what is no UTF-8 stays as it is."""
    if b"\xe1\x84" in document:
        return None
    try:
        return tokenizers.normalizers.NFC().normalize_str(document.decode()).encode()
    except UnicodeDecodeError:
        return document


def reference_pairs(text: str, normalizes: bool = True) -> EncodeOne:
    """The reference as what a device computes; a document that is not UTF-8 needs the CPU."""
    reference = tokenizers.Tokenizer.from_str(text)
    if not normalizes and reference.normalizer is not None:
        reference.normalizer = tokenizers.normalizers.Sequence([])
    reference.no_truncation()
    reference.no_padding()

    def encode(document: bytes) -> list[tuple[int, int]] | int:
        try:
            ids = reference.encode(document.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            return 2
        return [(i, 0) for i in ids]

    return encode


if __name__ == "__main__":
    script = HostEngine(**json.loads(sys.argv[1]))
    os._exit(main(sys.argv[2:], script.gpu))
