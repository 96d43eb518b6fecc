from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.execution import DirectLaunch

LONG_NAP_NS: int
LONG_STEPS: int
LONG_LEARNS: int
LONG_EARLY_PARTS: int
LONG_ROW: int
LONG_DOUBLES: int
LONG_LATE: int
MEASURED: int
MAX_NOTED: int
MAX_FLIGHTS: int
FLAG_IDS: int
SAMPLE_BYTES: int

def learned(
    known_ns: float, due_ns: float, took_ns: float, was_late: bool, has_napped: bool, n_in_row: int, /
) -> tuple[float, int]: ...

class NativeWay:
    is_quiet: bool
    def __init__(
        self,
        *,
        text_type: type,
        ids_type: type,
        lease_type: type,
        call_type: Callable[[], Any],
        result_type: Callable[[list[Any], list[int], str], Any],
        kinds: tuple[str, str, str],
        route: str,
        hold_from: int,
        on_failed_launch: Callable[[int], object],
        on_failed_callback: Callable[[Exception], object],
        on_full: Callable[[], object],
    ) -> None: ...
    @property
    def n_findings(self) -> int: ...
    @property
    def n_taken(self) -> int: ...
    @property
    def n_views(self) -> int: ...
    @property
    def launch_cpu_ns(self) -> int: ...
    @property
    def turn_cpu_ns(self) -> int: ...
    @property
    def n_flying(self) -> int: ...
    @property
    def began_ns(self) -> int: ...
    def kind_of(self, text: bytes | memoryview, /) -> str: ...
    def turn(self, seconds: float, /) -> bool | None: ...
    def give_up(self) -> tuple[Any, Any, Any, Any, Any, Any, Any, int] | None: ...
    def open(
        self,
        owner: object,
        ordinary: object,
        asked: tuple[object, ...],
        kind: str,
        min_bytes: int,
        max_bytes: int,
        until_ns: int,
        /,
    ) -> None: ...
    def close(self, owner: object, /) -> None: ...
    def forget(self, owner: object, /) -> None: ...
    def calm(self) -> None: ...
    def expect(self, owner: object, n_bytes: int, predicted_ns: float, /) -> None: ...
    def drain(self) -> list[tuple[Any, Any, int, int, int, int]]: ...

class NativeEnding:
    def __init__(
        self, way: NativeWay, give_back: Callable[[], object], append: Callable[[Any], object], entry: object, /
    ) -> None: ...

class NativePlace:
    def __init__(
        self,
        way: NativeWay,
        owner: object,
        link: object,
        id_bytes: NDArray[np.uint8],
        direct: DirectLaunch,
        capacity: int,
        /,
    ) -> None: ...
    def take(
        self,
        text: object,
        lease: object,
        on_done: Callable[..., object],
        tokenizer: object,
        options: object,
        model: str,
        route: str,
        /,
    ) -> Any: ...
    def close(self) -> None: ...
