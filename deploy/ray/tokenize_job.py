"""`sidetok tokenize-files` on a Ray cluster: the same files, made by actors of Ray Data.

    python -m deploy.ray.tokenize_job /data/corpus /data/ids --workers 8 --cpus-per-worker 4 --eos auto

Input and output are directories that every node sees under the same path. Groups of files are the unit of work: one is
done by one actor, which goes on where an earlier run stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.data

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.files.command import Arguments, locked, parse, report
from service.files.engine import Engine
from service.files.errors import FilesError
from service.files.plan import Plan, make_plan, write_manifest
from service.files.run import UnitRun
from service.settings import Parser

PROG = "python -m deploy.ray.tokenize_job"
MAX_BLOCKS = 10_000


class UnitWorker:
    """An actor with one engine, for unit after unit."""

    def __init__(self, plan: Plan, work: DispatcherOptions, gpu: GpuRouteOptions) -> None:
        self._plan = plan
        self._engine = Engine(plan.options, work, gpu)
        if self._engine.tokenizer.spec.digest != plan.facts["tokenizer"]:
            raise FilesError("--tokenizer: this node has another one under the same path")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Work on one unit; says how many records were left out, or what stopped it."""
        try:
            shards = UnitRun(self._plan, int(row["unit"]), self._engine, lambda group: None).work()
        except FilesError as error:
            # As a value, it comes to the driver as one line and not inside the traces of Ray.
            return {"unit": row["unit"], "n_left_out": 0, "error": str(error)}
        return {"unit": row["unit"], "n_left_out": sum(len(shard["failures"]) for shard in shards), "error": ""}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit status is that of `sidetok tokenize-files`."""
    parser = Parser(prog=PROG, add_help=False)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpus-per-worker", type=int, default=1)
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    cluster, rest = parser.parse_known_args(argv)
    if min(cluster.workers, cluster.cpus_per_worker) < 1 or cluster.gpus_per_worker < 0:
        parser.error("--workers and --cpus-per-worker are at least 1, --gpus-per-worker at least 0")
    arguments = parse(rest, prog=f"{PROG} [--workers N] [--cpus-per-worker N] [--gpus-per-worker N]")
    try:
        with locked(arguments.output):
            manifest = tokenize(arguments, cluster.workers, cluster.cpus_per_worker, cluster.gpus_per_worker)
    except (FilesError, ray.exceptions.RayError) as error:
        print(f"{PROG}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
        return 1
    report(manifest, sys.stderr)
    return 3 if manifest["n_left_out"] else 0


def tokenize(arguments: Arguments, n_workers: int, n_cpus: int, n_gpus: float) -> dict[str, Any]:
    """Make every shard and the manifest. Raises `FilesError`, and `RayError` for what ended a worker."""
    plan = _plan(arguments)
    work = replace(arguments.work, cpu_workers=arguments.work.cpu_workers or n_cpus)
    gpu = arguments.gpu if n_gpus else replace(arguments.gpu, gpus="none")
    n_left_out = 0
    for done in _rows(plan, work, gpu, n_workers, n_cpus, n_gpus):
        if done["error"]:
            raise FilesError(done["error"])
        n_left_out += done["n_left_out"]
        if n_left_out > arguments.files.max_errors:
            raise FilesError(f"{n_left_out} files and records could not be read (--max-errors); the run stops")
    return write_manifest(plan)


def _plan(arguments: Arguments) -> Plan:
    """The plan, made on the driver; only the tokenizer is loaded for it."""
    work = replace(arguments.work, cpu_workers=1)
    engine = Engine(arguments.files, work, replace(arguments.gpu, gpus="none"))
    try:
        return make_plan(arguments.source, arguments.output, arguments.files, work, engine)
    finally:
        engine.close()


def _rows(
    plan: Plan, work: DispatcherOptions, gpu: GpuRouteOptions, n_workers: int, n_cpus: int, n_gpus: float
) -> Iterator[dict[str, Any]]:
    """What each unit gave, as it is done."""
    n_units = len(plan.units)
    units = ray.data.from_items(
        [{"unit": unit} for unit in range(n_units)], override_num_blocks=min(n_units, MAX_BLOCKS)
    )
    done = units.map(
        UnitWorker,
        fn_constructor_args=(plan, work, gpu),
        compute=ray.data.ActorPoolStrategy(size=min(n_workers, n_units)),
        num_cpus=n_cpus,
        num_gpus=n_gpus,
    )
    yield from done.iter_rows()


if __name__ == "__main__":
    sys.exit(main())
