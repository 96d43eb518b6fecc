"""Documents beyond the largest size class, over real engine processes: cut where the ids stay the same."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dispatcher.gpu.group import Group
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import load_tokenizer
from gpu_core.encoder import NO_CUT
from gpu_core.spec import read_spec
from tests.dispatcher.host_engine import HostEngine
from tests.engine_rig import LIMIT_S, until
from tests.gpu_core.bridge_files import file_of

PLAIN = EncodeOptions(add_special_tokens=False)


@pytest.mark.parametrize("family", ["ours", "byte_bpe"])
def test_a_document_beyond_the_largest_class(tmp_path: Path, family: str) -> None:
    """Answered by the GPU, BPE over characters (Gemma) too; one without a place to cut it needs the CPU."""
    data = file_of(family)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    tokenizer = load_tokenizer(data, engine="reference", cache_dir=None)
    key = tokenizer.spec.digest
    command = HostEngine({read_spec(data).digest: str(path)}).command()
    options = GpuRouteOptions(gpus="0", gpu_classes_kib="4", gpu_contexts=2, gpu_watchdog_s=LIMIT_S)
    gpus = Gpus(options, ThreadClocks(), None, command, False)
    gpus.start()
    gpus.add(tokenizer, data)
    until(lambda: gpus.serves(key))
    documents = ["the cat and the dog, 12 of them.\n\n" * 400, "short", "\u4e2d" * 4000]
    ended = threading.Event()
    group = Group(key, [document.encode() for document in documents], lambda _: ended.set(), lambda *_: ended.set())
    gpus.route(0).submit(group)
    assert ended.wait(LIMIT_S)
    assert set(group.needs_cpu) <= {2}
    assert set(group.needs_cpu.values()) <= {NO_CUT}
    expected = [document.ids for document in tokenizer.encode(documents, PLAIN)]
    assert group.ids[:2] == expected[:2]
    gpus.remove(tokenizer)
    until(lambda: not gpus.serves(key))
    assert not gpus._cuts
    gpus.close()
