"""Start values of the costs: both routes are timed with built-in text when a model was loaded, in about a second.

    costs.begin(CostKey("cpu", digest, kind), values)   for kind, values in start_values(probe, key, cache).items()

The result is kept on disk for the next start on the same host with the same device, tokenizer, engine and version.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from dispatcher.costs import ASCII, KINDS, MIXED, WIDE, Line, StartValues
from dispatcher.gpu.group import Group
from dispatcher.gpu.route import GpuRoute
from dispatcher.proof import write_atomically
from gpu_core.errors import SidetokError

log = logging.getLogger("sidetok.calibration")

CALIBRATION_VERSION = 2
"""Raised when texts, sizes or the way of timing change."""
BUDGET_NS = 500_000_000
"""For one route of one model. What does not fit is left out, large texts first."""
SIZES = (1 << 10, 1 << 14, 1 << 18)
N_RUNS = 5
"""Of one text; the median counts. One more before them warms up."""
PROBE_S = 2.0
"""A GPU that takes longer for one text is not calibrated."""
LOOK_S = 0.0005
"""How often it is looked whether an answer has been counted."""


class Spent(NamedTuple):
    """What encoding one text took."""

    time_ns: int
    cpu_ns: int
    """Host CPU in all processes."""


Probe = Callable[[str], Spent]
"""Encodes a text on one route."""


class CalibrationKey(NamedTuple):
    """Everything that start values depend on."""

    host: str
    device: str
    """Name of the GPU; empty on the CPU route."""
    digest: str
    """Of the tokenizer."""
    engine: str
    version: str
    """Of the engine."""


class ProbeFailed(SidetokError):
    """The route that is to be timed does not answer."""


def start_values(probe: Probe, key: CalibrationKey, cache: CalibrationCache) -> dict[str, StartValues]:
    """Start values by content kind, from the cache or measured now. Kinds are missing when there was no time.

    Raises what the probe raises.
    """
    values = cache.recall(key)
    if values is None:
        values = measure(probe)
        cache.keep(key, values)
    return values


def measure(
    probe: Probe, budget_ns: int = BUDGET_NS, clock: Callable[[], int] = time.monotonic_ns
) -> dict[str, StartValues]:
    """Time a route with text of every kind and size, the small ones first and, once it is warm, again.

    The first calls of a route that nothing was asked of find nothing in any cache, and take ten times as long.
    Raises what the probe raises, but a route that fails at a large text is judged by the smaller ones.
    """
    end_ns = clock() + budget_ns
    seen: dict[str, list[tuple[int, Spent]]] = {kind: [] for kind in KINDS}
    try:
        for n_bytes in SIZES:
            for kind in KINDS:
                if (spent := _time(probe, kind, n_bytes, end_ns, clock)) is not None:
                    seen[kind].append((n_bytes, spent))
        for kind, points in seen.items():
            spent = _time(probe, kind, SIZES[0], end_ns, clock, N_RUNS + 1)
            if spent is not None and spent.time_ns < points[0][1].time_ns:
                points[0] = (SIZES[0], spent)
    except ProbeFailed:
        if not all(seen.values()):
            raise
    return {
        kind: StartValues(
            fit([(n_bytes, spent.time_ns) for n_bytes, spent in points]),
            fit([(n_bytes, spent.cpu_ns) for n_bytes, spent in points]),
        )
        for kind, points in seen.items()
        if points
    }


def cpu_probe(encode: Callable[[str], object]) -> Probe:
    """A probe of something that encodes on the calling thread."""

    def probe(text: str) -> Spent:
        start_ns, start_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        encode(text)
        return Spent(time.monotonic_ns() - start_ns, time.thread_time_ns() - start_cpu_ns)

    return probe


def gpu_probe(route: GpuRoute, model_key: str) -> Probe:
    """A probe of a route that serves a model; raises `ProbeFailed` when it gives no answer."""

    def probe(text: str) -> Spent:
        ended = threading.Event()
        failed: list[str] = []

        def on_fallback(_group: Group, reason: str) -> None:
            failed.append(reason)
            ended.set()

        data = text.encode()
        group = Group(model_key, [data], lambda _group: ended.set(), on_fallback)
        before, start_ns = _counted(route), time.monotonic_ns()
        route.submit(group)
        if not ended.wait(PROBE_S):
            group.cancelled = True
            raise ProbeFailed("the GPU route does not answer")
        took_ns = time.monotonic_ns() - start_ns
        if failed:
            raise ProbeFailed(f"the GPU route gives no answer: {failed[0]}")
        # Replays are counted once they were handed out.
        while (after := _counted(route)).n_bytes < before.n_bytes + len(data):
            if time.monotonic_ns() > start_ns + took_ns + PROBE_S * 1e9:
                raise ProbeFailed("the GPU route does not count its answer")
            time.sleep(LOOK_S)
        return Spent(took_ns, after.cpu_ns - before.cpu_ns)

    return probe


def host_name() -> str:
    """What this host's speed depends on: its CPU and how many of it there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown CPU'} x {os.cpu_count()}"


def fit(points: Sequence[tuple[int, float]]) -> Line:
    """The line with the least relative errors; neither of its parts is negative. At least one point."""
    weighted = [(1.0 / max(ns, 1.0) ** 2, float(n_bytes), max(ns, 1.0)) for n_bytes, ns in points]
    total = sum(w for w, _x, _y in weighted)
    mean_x = sum(w * x for w, x, _y in weighted) / total
    mean_y = sum(w * y for w, _x, y in weighted) / total
    spread = sum(w * (x - mean_x) ** 2 for w, x, _y in weighted)
    if spread <= 1e-9 * mean_x * mean_x * total:
        return Line(mean_y, 0.0)
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in weighted) / spread
    if slope < 0:
        return Line(mean_y, 0.0)
    if mean_y < slope * mean_x:
        return Line(0.0, mean_y / mean_x)
    return Line(mean_y - slope * mean_x, slope)


class CalibrationCache:
    """Start values on disk. What cannot be read or written is as good as absent."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` None keeps nothing."""
        self._directory = directory / "costs" if directory else None

    def recall(self, key: CalibrationKey) -> dict[str, StartValues] | None:
        """What was measured for exactly this key."""
        if self._directory is None:
            return None
        try:
            entry = json.loads(_path(self._directory, key).read_bytes())
            if entry["key"] != _fields(key):
                return None
            values = {
                kind: StartValues(Line(*map(float, time_line)), Line(*map(float, cpu_line)))
                for kind, (time_line, cpu_line) in entry["values"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return None
        lines = [line for start in values.values() for line in start]
        return values if all(0 <= part < float("inf") for line in lines for part in line) else None

    def keep(self, key: CalibrationKey, values: dict[str, StartValues]) -> None:
        """Write for later starts; a failure to do so is logged only."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_atomically(_path(self._directory, key), json.dumps({"key": _fields(key), "values": values}))
        except OSError as error:
            log.warning("a calibration could not be kept and will be done again at the next start: %s", error)


def calibration_text(kind: str, n_bytes: int, seed: int) -> str:
    """Text of a kind, of at most so many bytes of UTF-8 and nearly as many; another one for each seed."""
    text = _endless(kind)
    first = seed * 40_009 % len(text)
    window = text[first : first + n_bytes] + text[:n_bytes]
    return window[:n_bytes].encode()[:n_bytes].decode(errors="ignore")


@cache
def _endless(kind: str) -> str:
    """Enough text. A quarter of its words are made of syllables: engines remember words that they have seen."""
    source = random.Random(kind)
    common, syllables = _COMMON[kind], _SYLLABLES[kind].split()
    words: list[str] = []
    left = SIZES[-1]
    while left > 0:
        words += source.choices(common, k=3)
        words.append(" " + "".join(source.choices(syllables, k=source.randint(1, 4))))
        left -= sum(map(len, words[-4:]))
    return "".join(words)


_COMMON = {
    ASCII: (
        *(" the", " of", " and", " a", " in", " tokenizer", " service", " engine", " batch", " answers", " request"),
        *(" waits", " quickly", " measured", " latency", ".\n", ", ", "; ", " (see below)", " 1024", " 3.14", "\n\n"),
        *("def run(self):\n    ", "return x + 1\n", "for i in range(10):\n        ", "if (a[i] == 0) {\n\t", "}\n"),
        *(" don't", " It's", " HTTP/1.1", " user@example.org", " https://example.org/a?b=c", " self.value = None\n"),
    ),
    MIXED: (
        *(" der", " größte", " Übergang", " straße", " élève", " été", " garçon", " où", " niño", " mañana", " São"),
        *(" is", " not", " only", " text", " but", " naïve", " café", ".\n", ", ", " – ", " „ja“", " 12,5 €", " œuvre"),
        *(" čeština", " život", " łódź", " kąt", " şehir", " güzel", " the", " answer", " of", " Århus", " ß", "\n"),
    ),
    WIDE: (
        *("今日は", "天気", "が", "いい", "です", "。", "漢字", "的", "语言", "模型", "处理", "文本", "，", "速度很快"),
        *(
            " привет",
            " мир",
            " это",
            " быстрый",
            " текст",
            " для",
            " проверки",
            ". ",
            " 안녕",
            "하세요",
            " 토큰",
            " 모델",
        ),
        *(" नमस्ते", " भाषा", " مرحبا", " بالعالم", " שלום", " ไทย", " καλημέρα", " κόσμε", "🙂", "🚀", "\n", " 2026"),
    ),
}
_SYLLABLES = {
    ASCII: "ba con de ex fi gra hu in jo ka li me no or pre qua re sta ti un ver wor xi yo zen ing tion ly er est"
    " al ous ment ed s get_ Set Max Node _id 0x 7f 42",
    MIXED: "ba con é für gra hü in jo ka lí me no ör pre ça re stä ti un vér wor ñi yo zen ung ção ly ê el à"
    " ž ště ów ąć ği ş ment en es ier 19",
    WIDE: "的 是 不 了 人 我 在 有 他 这 中 大 来 上 国 和 地 到 时 要 出 就 年 す る を ン ト カ при ст ов ные го"
    " ми дер 니다 에서 한 नि का र्त ال من ات ος ων ית ים ครับ กา",
}


def _time(
    probe: Probe, kind: str, n_bytes: int, end_ns: int, clock: Callable[[], int], first_seed: int = 0
) -> Spent | None:
    """The median of several runs; of fewer when time runs out, None when it has."""
    runs: list[Spent] = []
    for seed in range(first_seed, first_seed + N_RUNS + 1):
        text = calibration_text(kind, n_bytes, seed)
        if clock() >= end_ns:
            break
        runs.append(probe(text))
    runs = runs[1:] or runs
    if not runs:
        return None
    return Spent(int(median(run.time_ns for run in runs)), int(median(run.cpu_ns for run in runs)))


class _Counted(NamedTuple):
    """What a route has counted."""

    n_bytes: int
    cpu_ns: int


def _counted(route: GpuRoute) -> _Counted:
    counted = route.snapshot()
    return _Counted(counted.batch_bytes.sum, counted.stage_cpu_ns + counted.deliver_cpu_ns + counted.engine_cpu_ns)


def _fields(key: CalibrationKey) -> dict[str, str | int]:
    return {**key._asdict(), "calibration_version": CALIBRATION_VERSION}


def _path(directory: Path, key: CalibrationKey) -> Path:
    return directory / (hashlib.sha256(json.dumps(_fields(key), sort_keys=True).encode()).hexdigest()[:32] + ".json")
