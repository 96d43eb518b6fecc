"""The dispatcher under open-loop load at its in-process API: three policies beside gigatoken, long documents, drills.

    python -m tests.benchmarks.dispatch DATA [--part policies,long,huge,kill] [--gpus auto] [--json FILE] [--plot FILE]

DATA is a folder laid out like `../shared/data`. Documents of 1 to 16 KiB (log-uniform), equal thirds of books, code and
multilingual text, none twice in a run; Gamma arrivals fixed before the run; latency from the intended start. Ids are
compared with the reference before and during every run. The service (this process and its engines) runs on `--cpus`
CPUs, the thread that offers the load on the others. Host CPU: all threads of the service, what the offering thread
spends inside the dispatcher, and the engine processes, per document answered.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dispatcher.gpu.options import LOCAL, PROCESS
from dispatcher.policy import CPU
from tests.benchmarks.dispatch_drills import KEPT_UP, LONG_RATES, Bench, huge_among_small, kill_one, long_documents
from tests.benchmarks.dispatch_gigatoken import GigatokenTarget
from tests.benchmarks.dispatch_load import Load
from tests.benchmarks.dispatch_plot import plot
from tests.benchmarks.dispatch_run import CountingTarget, Row, check, warm_up
from tests.benchmarks.dispatch_service import POLICIES, DispatcherService
from tests.gpu_core.device_data import DeviceData, Reference

RATES = (10_000, 20_000, 40_000, 60_000, 80_000, 100_000)
PARTS = ("policies", "long", "huge", "kill")
CORPORA = ("books", "code", "multilingual")
WARM_UP_S = 0.4
N_WORD_DOCUMENTS = 500
"""What each thread of gigatoken sees before: 2 MB or so."""
KILL_PART = 8
"""An engine is killed when an eighth of the load was offered."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    parts: tuple[str, ...] = PARTS
    policies: tuple[str, ...] = POLICIES
    rates: tuple[int, ...] = RATES
    long_rates: tuple[int, ...] = LONG_RATES
    seconds: float = 2.0
    long_seconds: float = 1.5
    kill_rate: int = 10_000
    kill_seconds: float = 12.0
    shape: float = 1.0
    gpus: str = "auto"
    n_gpus: int = 1
    n_cpus: int = 8
    limit_s: float = 200.0
    n_checked: int = 300
    """Documents that are compared before anything is timed."""
    family: str = "llama3_1"
    with_gigatoken: bool = True
    driven: bool = False
    """Whether the thread that offers the load drives the GPU routes, too."""
    engine: str = PROCESS
    """`process` or `local`: see the option `gpu_engine`."""


def run(plan: Plan, data: DeviceData, command: Sequence[str] = ()) -> dict[str, list[Row]]:
    """Rows by part. Raises when ids differ from the reference before anything is timed.

    `command` replaces the program of the engines.
    """
    until_s = time.monotonic() + plan.limit_s
    generator_cpus = _separate_cpus(plan.n_cpus)
    file = data.tokenizer_json(plan.family)
    reference = Reference(file)
    bench = Bench({name: data.corpus(name).encode() for name in CORPORA}, reference, generator_cpus, until_s)
    gigatoken = GigatokenTarget(file, plan.n_cpus) if plan.with_gigatoken else None
    service = DispatcherService(
        file,
        gpus=plan.gpus,
        n_gpus=plan.n_gpus,
        n_workers=plan.n_cpus,
        command=command,
        driven=plan.driven,
        engine=plan.engine,
    )
    try:
        targets: list[CountingTarget] = [service.target(policy) for policy in plan.policies]
        others = [gigatoken] if gigatoken else []
        documents = bench.trial(Load(plan.n_checked, 1.0, seed=1), 0).documents
        if gigatoken:
            words = bench.trial(Load(N_WORD_DOCUMENTS * plan.n_cpus, 1.0, seed=2), 0).documents
            warm_up(gigatoken, words, 0.0, first=len(words))
        for target in (*targets, *others):
            n = check(target, documents, reference)
            warm_up(target, documents, WARM_UP_S)
            print(f"{target.name}: {n} documents equal to the reference", flush=True)
        rows: dict[str, list[Row]] = {}
        for part in plan.parts:
            rows[part] = []
            for row in _rows(part, plan, bench, service, [*targets, *others]):
                rows[part].append(row)
                print(line(row), flush=True)
        return rows
    finally:
        service.close()
        if gigatoken:
            gigatoken.close()


def _rows(
    part: str, plan: Plan, bench: Bench, service: DispatcherService, targets: list[CountingTarget]
) -> Iterator[Row]:
    if part == "policies":
        yield from _policies(plan, bench, targets)
    elif part == "long":
        reserving = [service.target(policy, receives=True) for policy in plan.policies if policy != CPU]
        yield from long_documents(bench, [*reserving, *targets], plan.long_rates, plan.long_seconds)
    elif part == "huge":
        yield from huge_among_small(bench, targets[0])
    else:
        load = Load(plan.kill_rate, plan.kill_seconds, seed=9)
        yield kill_one(bench, service, targets[0], load, plan.kill_seconds / KILL_PART)


def _policies(plan: Plan, bench: Bench, targets: list[CountingTarget]) -> Iterator[Row]:
    """A target that does not keep up with a rate is not offered the next: it would still work on it meanwhile."""
    left = list(targets)
    for rate in plan.rates:
        if not bench.has_time():
            return
        trial = bench.trial(Load(rate, plan.seconds, shape=plan.shape, seed=rate))
        for target in tuple(left):
            row = trial.run(target, bench.generator_cpus, offered_per_s=rate)
            if row["unanswered"] or row["achieved_per_s"] < KEPT_UP * trial.rate:
                left.remove(target)
            yield row


def _separate_cpus(n_service: int) -> set[int] | None:
    """Keep this thread, and what it starts, on the first CPUs; the others, if there are any, are the generator's."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) <= n_service:
        return None
    os.sched_setaffinity(0, cpus[:n_service])
    return set(cpus[n_service:])


def line(row: Row) -> str:
    """One row for the eye."""
    return "  ".join(
        f"{key}={_text(value)}" for key, value in row.items() if key != "counters" and value not in ([], {})
    )


def rounded(row: Row) -> Row:
    """A row as it is kept: without counters, with as many digits as say something."""
    kept = {key: value for key, value in row.items() if key not in ("counters", "cpu_parts_us")}
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in kept.items()}


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    return str(value)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", dest="parts", type=_words)
    parser.add_argument("--policies", type=_words)
    parser.add_argument("--rates", type=_numbers)
    parser.add_argument("--long-rates", type=_numbers)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--long-seconds", type=float)
    parser.add_argument("--kill-rate", type=int)
    parser.add_argument("--kill-seconds", type=float)
    parser.add_argument("--shape", type=float, help="of the Gamma distribution of the gaps; 1 is Poisson")
    parser.add_argument("--gpus", help="auto, none, or indices")
    parser.add_argument("--n-gpus", type=int, help="GPUs that must be up before the first run")
    parser.add_argument("--cpus", dest="n_cpus", type=int, help="CPUs of the service")
    parser.add_argument("--limit", dest="limit_s", type=float, help="seconds after which no run begins")
    parser.add_argument("--family")
    parser.add_argument("--no-gigatoken", dest="with_gigatoken", action="store_false")
    parser.add_argument("--driven", action="store_true", help="the offering thread drives the GPU routes")
    parser.add_argument("--engine", choices=(PROCESS, LOCAL), help="where the GPU is used")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, nargs="*", default=[])
    parser.set_defaults(**asdict(Plan()))
    given = vars(parser.parse_args())
    plan = Plan(**{field.name: given[field.name] for field in fields(Plan)})
    rows = run(plan, DeviceData(given["data"]))
    title = f"{plan.family}, documents of 1 to 16 KiB, {plan.n_cpus} CPUs, {plan.n_gpus} GPU"
    if given["json"]:
        compact = {part: [rounded(row) for row in some] for part, some in rows.items()}
        given["json"].write_text(json.dumps({"title": title, **compact}, indent=1) + "\n")
    if given["plot"] and rows.get("policies"):
        plot(rows["policies"], given["plot"], title)
    everything = [row for part in rows.values() for row in part]
    return 1 if any(row["wrong"] or row["unanswered"] for row in everything) else 0


if __name__ == "__main__":
    sys.exit(main())
