"""Options of the GPU core."""

from dataclasses import fields

import pytest

from gpu_core.options import MAX_CLASSES, GpuOptions


def test_defaults() -> None:
    """The default ladder spans 4 KiB to 16 MiB in at most 8 classes, and every knob is documented."""
    options = GpuOptions()
    assert options.size_classes_bytes[0] == 4096
    assert options.size_classes_bytes[-1] == 16 << 20
    assert len(options.size_classes_bytes) <= MAX_CLASSES
    assert all(field.metadata["doc"].endswith(".") for field in fields(options))


@pytest.mark.parametrize(
    "wrong",
    [
        {"size_classes_bytes": ()},
        {"size_classes_bytes": (8, 4)},
        {"size_classes_bytes": (4, 4)},
        {"size_classes_bytes": (0, 4)},
        {"size_classes_bytes": tuple(range(1, 10))},
        {"contexts_per_class": 0},
        {"max_documents": 0},
        {"memory_budget_bytes": -1},
        {"wait": "patiently"},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    """A value that makes no sense is refused when the options are made."""
    with pytest.raises(ValueError, match="must be"):
        GpuOptions(**wrong)  # type: ignore[arg-type]
