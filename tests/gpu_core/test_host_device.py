"""The memory of a host device, which is counted as that of a GPU is."""

from __future__ import annotations

from typing import Any

from gpu_core.host_device import TOTAL_BYTES, HostDevice, HostGpu
from gpu_core.ladder import SizeClass
from gpu_core.options import GpuOptions


def test_memory_of_all_contexts() -> None:
    """What is free falls with every context of every tokenizer, and comes back with what is given up."""
    gpu = HostGpu(lambda key, tables: HostDevice(lambda _: 0, token_starts=key == "starts"))
    tables: Any = None
    options, sizes = GpuOptions(), (SizeClass(4096, 8), SizeClass(65536, 64))
    assert gpu.memory_bytes() == (TOTAL_BYTES, TOTAL_BYTES)
    devices = {key: gpu.device(key, tables, options) for key in ("ids", "starts")}
    assert gpu.memory_bytes() == (TOTAL_BYTES, TOTAL_BYTES)
    contexts = {key: [device.context(size) for size in sizes] for key, device in devices.items()}
    taken = {key: sum(size.device_bytes(key == "starts") for size in sizes) for key in devices}
    assert 0 < taken["ids"] < taken["starts"]
    assert gpu.memory_bytes() == (TOTAL_BYTES - taken["ids"] - taken["starts"], TOTAL_BYTES)
    del contexts["ids"], devices["ids"]
    assert gpu.memory_bytes() == (TOTAL_BYTES - taken["starts"], TOTAL_BYTES)
    del contexts["starts"][0]
    assert gpu.memory_bytes() == (TOTAL_BYTES - sizes[1].device_bytes(True), TOTAL_BYTES)
