"""Options of the GPU route's engines."""

from typing import Any

import pytest

from dispatcher.gpu.options import GpuRouteOptions


def test_defaults_make_sense() -> None:
    """All GPUs, several classes, several contexts of each."""
    options = GpuRouteOptions()
    assert options.gpu_numbers() is None
    encoder = options.encoder_options(3)
    assert encoder.device == 3
    assert encoder.size_classes_bytes[0] == 16 << 10
    assert encoder.contexts_per_class >= 2


@pytest.mark.parametrize(("text", "numbers"), [("none", ()), ("auto", None), ("0", (0,)), ("3, 1,3", (1, 3))])
def test_gpus(text: str, numbers: tuple[int, ...] | None) -> None:
    """Which GPUs a text names."""
    assert GpuRouteOptions(gpus=text).gpu_numbers() == numbers


@pytest.mark.parametrize(
    "wrong",
    [{"gpus": "all"}, {"gpus": "-1"}, {"gpus": ""}, {"gpu_classes_kib": "64,16"}, {"gpu_classes_kib": "big"}],
    ids=str,
)
def test_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    """Nonsense is refused when the options are read, not when an engine starts."""
    with pytest.raises(ValueError, match=r"."):
        GpuRouteOptions(**wrong)


def test_memory_budget() -> None:
    """A budget in MiB is one in bytes for each model."""
    assert GpuRouteOptions(gpu_memory_mib=3).encoder_options(0).memory_budget_bytes == 3 << 20
