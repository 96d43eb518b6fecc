"""Which route answers: a pure function of the work, both queues, and what work was seen to cost.

Both routes are predicted as if the work joined the end of their queues now:

    CPU   backlog / workers that are awake  +  wake-up  +  documents * (fixed + byte * mean size)
          +  what the documents on the GPU route lose by it
    GPU   rest of the replay under way  +  replay of the batch that the work would be in  +  what needs the CPU then
          +  what it takes to get there and back

When documents wait for the host, each route also counts what it keeps all of them waiting: a worker's share of the
encoding, or what the GPU route works for one document. So in overload the work goes where it is drained faster, and
not to a route that makes the other one slow.

The faster one answers. When they are equal within 10 %, the one that takes less of the host's CPU does: it is kept
while it is at most 10 % slower, and changed to while it is at most 5 % slower, so that noise changes nothing.

Short work is not predicted while all of it takes one route together, because that is what answers sooner at this load
(`dispatcher.ways`).

    choose_route(n_bytes, n_documents, CpuLoad(...), cpu_cost, [route.load(key), ...], gpu_cost, now_ns)
        -> Choice(route, reason, gpu), times

`dispatcher.chooser` calls it with what it keeps: the observed costs, what was chosen before, and the way of short work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.costs import RouteCost

CPU, GPU = "cpu", "gpu"
ADAPTIVE = "adaptive"
POLICIES = (ADAPTIVE, CPU, GPU)

PREDICTED = "predicted"
"""The way of work that is predicted piece by piece. The other ways are that all short work takes one route."""

FASTER, LESS_CPU, EXPLORE, POLICY, NO_GPU, TOGETHER = "faster", "less_cpu", "explore", "policy", "no_gpu", "together"
REASONS = (FASTER, LESS_CPU, EXPLORE, POLICY, NO_GPU, TOGETHER)
"""Faster; equally fast and less host CPU; to see what the other one costs now; asked for; the only one there is; that
of all short work now."""

STAYS = 1.10
"""A route with less host CPU is kept while it is slower by no more than this."""
MOVES = 1.05
"""It is changed to while it is slower by no more than this."""
LESS = 0.9
"""Host CPU counts as less below this part of the other's."""
HANDOVER_NS = 20_000
"""What a worker that encodes takes from each document on a busy GPU route: their threads share one interpreter. ..."""
BUSY_DOCUMENTS = 8
"""... Busy is one with more documents, ..."""
HANDOVERS_AT_MOST = 4.0
"""... and never is the CPU route taken for slower than by so many times its own time."""
SHORT_BYTES = 1 << 15
"""Short work has no more bytes for each document, ..."""
SHORT_WORK_BYTES = 1 << 17
"""... and no more together."""
SELDOM_UNANSWERED = 0.1
"""Documents that a GPU leaves unanswered more often are predicted, whichever route others take together."""
KEEP_NS = 40_000
"""What a replay takes of the others on its way, in threads that are woken and change places: a worker that would encode
the work itself hands it over only when the answer comes so much sooner."""


@dataclass(slots=True)
class GpuLoad:
    """The queue of one GPU for one model, live: the route changes it under its lock, anybody reads it without."""

    ready: bool = False
    """Launches are accepted."""
    waiting_bytes: int = 0
    """In documents that share replays and are not launched yet."""
    launched_ns: int = 0
    """When the oldest shared replay under way was launched; 0 = there is none."""
    launched_bytes: int = 0
    """Its bytes."""
    alone_waiting_bytes: int = 0
    """In documents that get a replay of their own and are not launched yet."""
    alone_launched_ns: int = 0
    alone_launched_bytes: int = 0
    alone_over_bytes: int = 1 << 18
    """Longer documents get a replay of their own."""
    max_batch_bytes: int = 1 << 20


class CpuLoad(NamedTuple):
    """The queue of the CPU route, over all models."""

    n_workers: int
    n_idle: int
    """Workers that sleep."""
    waiting_bytes: int = 0
    waiting_documents: int = 0
    start_ns: float = 0.0
    """What an idle worker takes to begin."""
    is_first: bool = False
    """A worker chooses, which would go on at once: the others wait for it."""


class Choice(NamedTuple):
    """A route, why, and which GPU (an index of `gpus`; -1 on the CPU route)."""

    route: str
    reason: str
    gpu: int = -1


_CPU_CHOICE = {reason: Choice(CPU, reason) for reason in REASONS}
_GPU_CHOICES = [{reason: Choice(GPU, reason, gpu) for reason in REASONS} for gpu in range(16)]


def choose_route(
    n_bytes: int,
    n_documents: int,
    cpu: CpuLoad,
    cpu_cost: RouteCost,
    gpus: Sequence[GpuLoad],
    gpu_cost: RouteCost,
    now_ns: int,
    policy: str = ADAPTIVE,
    last: str = "",
    way: str = PREDICTED,
) -> tuple[Choice, float]:
    """The route for documents of one model and kind, and how many times as long the other one is predicted to take.

    `gpus` are the queues of that model. `policy` is that of the request, or else of the service; `last` is the route
    that such work took last, and `way` that of short work now. Times are 1.0 where nothing was predicted.
    """
    if policy != ADAPTIVE:
        return _asked_for(policy, n_bytes, n_documents, gpus, gpu_cost, now_ns), 1.0
    gpu, gpu_ns = best_gpu(n_bytes, n_documents, gpus, gpu_cost, now_ns)
    if gpu < 0:
        return _CPU_CHOICE[NO_GPU], 1.0
    if way != PREDICTED and is_short(n_bytes, n_documents):
        if way == CPU:
            return _CPU_CHOICE[TOGETHER], 1.0
        if not is_often_left(n_bytes // n_documents, gpu_cost):
            return gpu_choice(gpu, TOGETHER), 1.0
    return _predict(n_bytes, n_documents, cpu, cpu_cost, gpus[gpu], gpu_cost, (gpu, gpu_ns), last)


def is_short(n_bytes: int, n_documents: int) -> bool:
    """Whether documents are short, which some ways send together."""
    return n_bytes <= SHORT_WORK_BYTES and n_bytes <= SHORT_BYTES * n_documents


def is_often_left(each: int, cost: RouteCost) -> bool:
    """Whether a GPU leaves documents of `each` bytes unanswered so often that no way sends them there."""
    return cost.unanswered[each.bit_length() >> 1] >= SELDOM_UNANSWERED


def _asked_for(
    policy: str, n_bytes: int, n_documents: int, gpus: Sequence[GpuLoad], gpu_cost: RouteCost, now_ns: int
) -> Choice:
    """The choice where the route is given: which GPU, or none when none is ready."""
    if policy == CPU:
        return _CPU_CHOICE[POLICY]
    if len(gpus) == 1:
        return _GPU_CHOICES[0][POLICY] if gpus[0].ready else _CPU_CHOICE[NO_GPU]
    gpu, _ = best_gpu(n_bytes, n_documents, gpus, gpu_cost, now_ns)
    return _CPU_CHOICE[NO_GPU] if gpu < 0 else gpu_choice(gpu, POLICY)


def _predict(
    n_bytes: int,
    n_documents: int,
    cpu: CpuLoad,
    cpu_cost: RouteCost,
    load: GpuLoad,
    gpu_cost: RouteCost,
    best: tuple[int, float],
    last: str,
) -> tuple[Choice, float]:
    """The route that answers first. `best`: which GPU, whose queue is `load`, and its predicted completion."""
    gpu, gpu_ns = best
    each = n_bytes // n_documents
    cpu_ns = cpu_completion_ns(n_documents, each, cpu, cpu_cost)
    again = gpu_cost.unanswered[each.bit_length() >> 1]
    if (n_held := n_held_up(cpu, load, each, gpu_cost)) > 0:
        cpu_ns += n_held * cpu_cost.cpu.at(each) / cpu.n_workers
        gpu_ns += n_held * (drain_ns(each, load, gpu_cost) + again * cpu_cost.cpu.at(each) / cpu.n_workers)
    if (n_beyond := n_beyond_few(load, each)) > 0:
        cpu_ns += min(cpu_ns * HANDOVERS_AT_MOST, HANDOVER_NS * n_beyond / n_documents)
    if again > 0.0:
        gpu_ns += again * n_documents * cpu_cost.time.at(each)
    if cpu.is_first:
        gpu_ns += KEEP_NS
    if gpu_ns <= cpu_ns:
        near = cpu_ns <= gpu_ns * (STAYS if last == CPU else MOVES)
        if near and _is_less(cpu_cost.cpu.at(each), _gpu_takes(each, gpu_cost, cpu_cost, again)):
            return _CPU_CHOICE[LESS_CPU], 1.0
        return gpu_choice(gpu, FASTER), cpu_ns / gpu_ns
    near = gpu_ns <= cpu_ns * (STAYS if last == GPU else MOVES)
    if near and _is_less(_gpu_takes(each, gpu_cost, cpu_cost, again), cpu_cost.cpu.at(each)):
        return gpu_choice(gpu, LESS_CPU), 1.0
    return _CPU_CHOICE[FASTER], gpu_ns / cpu_ns


def best_gpu(
    n_bytes: int, n_documents: int, gpus: Sequence[GpuLoad], cost: RouteCost, now_ns: int
) -> tuple[int, float]:
    """The GPU with the least predicted completion, and that time from now; (-1, 0) when none is ready."""
    best, best_ns = -1, 0.0
    for index, load in enumerate(gpus):
        if load.ready:
            ns = gpu_completion_ns(n_bytes, n_documents, load, cost, now_ns)
            if best < 0 or ns < best_ns:
                best, best_ns = index, ns
    return best, best_ns


def cpu_completion_ns(n_documents: int, each: int, load: CpuLoad, cost: RouteCost) -> float:
    """Predicted nanoseconds until documents of `each` bytes are encoded by one worker."""
    at = cost.time.at
    run_ns = load.start_ns + n_documents * at(each)
    if load.is_first:
        return run_ns
    waiting, n_awake = load.waiting_documents, load.n_workers - load.n_idle
    if load.n_idle <= 0:
        # One more: on average, the next worker has that much left to do.
        return run_ns + (waiting + 1) * at(load.waiting_bytes // waiting if waiting else each) / n_awake
    if waiting and n_awake:
        # What waits although workers are idle gathers behind those that are awake.
        return run_ns + waiting * at(load.waiting_bytes // waiting) / n_awake
    return run_ns


def gpu_completion_ns(n_bytes: int, n_documents: int, load: GpuLoad, cost: RouteCost, now_ns: int) -> float:
    """Predicted nanoseconds until the replay of the batch that the documents would be in is complete."""
    ns = cost.beside.at(n_bytes // n_documents)
    if n_documents == 1 and n_bytes > load.alone_over_bytes:
        at = cost.alone.at
        ns += at(n_bytes)
        if load.alone_waiting_bytes:
            ns += load.alone_waiting_bytes / n_bytes * own_ns(n_bytes, cost)
        if load.alone_launched_ns:
            ns += max(0.0, load.alone_launched_ns + at(load.alone_launched_bytes) - now_ns)
        return ns
    at = cost.time.at
    # While a replay is under way, more will come to the next batch: it will be as large as this one.
    batch = max(load.waiting_bytes + n_bytes, load.launched_bytes)
    if batch > load.max_batch_bytes:
        n_full, batch = divmod(batch, load.max_batch_bytes)
        ns += n_full * own_ns(load.max_batch_bytes, cost)
    ns += at(batch)
    if load.launched_ns:
        ns += max(0.0, load.launched_ns + at(load.launched_bytes) - now_ns)
    return ns


def own_ns(n_bytes: int, cost: RouteCost) -> float:
    """Nanoseconds that the GPU route itself works for a replay.

    The rest of the replay's time it waits for the host. A queue is judged without it: documents that leave for the CPU
    route would make that wait longer for all others.
    """
    at = n_bytes.bit_length() >> 1
    return cost.work.at(n_bytes) if cost.work.seen_ns[at] else min(cost.time.at(n_bytes), cost.alone.at(n_bytes))


def drain_ns(each: int, load: GpuLoad, cost: RouteCost) -> float:
    """Nanoseconds from one document of `each` bytes to the next on a GPU route with much to do."""
    if each > load.alone_over_bytes:
        return max(own_ns(each, cost), cost.cpu.at(each))
    return max(own_ns(load.max_batch_bytes, cost) * each / load.max_batch_bytes, cost.cpu.at(each))


def n_held_up(cpu: CpuLoad, load: GpuLoad, each: int, cost: RouteCost) -> float:
    """Documents that wait for the host: in front of workers, beyond one for each, and on a GPU route that waits."""
    # Work that joins the end of the workers' queue waits there itself, and is predicted to.
    n_held = float(cpu.waiting_documents - cpu.n_workers) if cpu.is_first else 0.0
    if n_bytes := load.waiting_bytes + load.alone_waiting_bytes:
        batch = min(max(load.waiting_bytes, each), load.max_batch_bytes)
        time = cost.alone if each > load.alone_over_bytes else cost.time
        n_held += n_bytes / (each or 1) * max(0.0, 1.0 - own_ns(batch, cost) / time.at(batch))
    return n_held


def n_beyond_few(load: GpuLoad, each: int) -> int:
    """Documents of `each` bytes on a GPU route, beyond those of one that is not busy."""
    return (load.waiting_bytes + load.launched_bytes) // (each or 1) - BUSY_DOCUMENTS


def gpu_choice(gpu: int, reason: str) -> Choice:
    """The choice of a GPU."""
    return _GPU_CHOICES[gpu][reason] if gpu < len(_GPU_CHOICES) else Choice(GPU, reason, gpu)


def _gpu_takes(each: int, gpu_cost: RouteCost, cpu_cost: RouteCost, again: float) -> float:
    """Host CPU of one document that takes the GPU route, and sometimes the other one after it."""
    return gpu_cost.cpu.at(each) + again * cpu_cost.cpu.at(each)


def _is_less(takes_ns: float, other_ns: float) -> bool:
    return takes_ns < other_ns * LESS
