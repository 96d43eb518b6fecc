"""Setting up the execution contexts of a ladder: the largest first, and fewer when the memory does not suffice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from gpu_core.errors import DeviceUnavailable
from gpu_core.execution import ExecutionContext, OutOfDeviceMemory
from gpu_core.ladder import SizeClass, size_classes, within_budget
from gpu_core.options import GpuOptions

log = logging.getLogger("sidetok.gpu")

Make = Callable[[SizeClass, int], ExecutionContext]
"""(class, number within the class) -> a new context. Raises `OutOfDeviceMemory`."""


def set_up(options: GpuOptions, make: Make) -> dict[SizeClass, list[ExecutionContext]]:
    """Contexts of every class, the largest captured first; without memory for all, the largest are left out.

    Less than was asked for is a warning. Raises `DeviceUnavailable` when not even the smallest class fits.
    """
    wanted = size_classes(options)
    allowed = within_budget(wanted, options)
    while allowed:
        contexts: dict[SizeClass, list[ExecutionContext]] = {}
        if all(_add_context(make, size, contexts) for size in reversed(allowed)):
            for size in allowed:
                while len(contexts[size]) < options.contexts_per_class and _add_context(make, size, contexts):
                    pass
            _warn_of_less(options, wanted, contexts)
            return contexts
        contexts.clear()
        allowed = allowed[:-1]
    raise DeviceUnavailable("no memory on the device for even the smallest size class")


def _add_context(make: Make, size: SizeClass, contexts: dict[SizeClass, list[ExecutionContext]]) -> bool:
    made = contexts.setdefault(size, [])
    try:
        made.append(make(size, len(made)))
    except OutOfDeviceMemory:
        return False
    return True


def _warn_of_less(
    options: GpuOptions, wanted: Sequence[SizeClass], contexts: dict[SizeClass, list[ExecutionContext]]
) -> None:
    if len(contexts) < len(wanted):
        log.warning("device memory for %d of %d size classes", len(contexts), len(wanted))
    for size, made in contexts.items():
        if len(made) < options.contexts_per_class:
            log.warning("device memory for only %d contexts of %d bytes", len(made), size.capacity)
