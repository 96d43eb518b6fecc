"""The command `sidetok tokenize-files`: a directory of text, JSON lines or Parquet in, packed ids out."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.files.errors import FilesError
from service.files.options import FilesOptions
from service.settings import Parser, add_flags, resolve, settings_of, with_cache_dir

WORK = ("cpu_workers", "cpu_engine", "cache_dir", "policy", "max_reference_bytes")
"""Knobs of the dispatcher that mean something without requests."""
MAX_SHOWN = 20
"""Failures that are shown; all are in the manifest."""
LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The command line."""

    source: Path
    output: Path
    files: FilesOptions
    work: DispatcherOptions
    gpu: GpuRouteOptions


def parse(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, prog: str = "sidetok tokenize-files"
) -> Arguments:
    """Read the command line. A bad value is one line on standard error and exit status 2."""
    parser = Parser(
        prog=prog,
        description="Tokenize a directory of text, JSON lines or Parquet to packed ids. Run again, it goes on where it "
        "stopped.",
        epilog="Exit status: 0 all is written; 3 all but some files or records, which the manifest names; 1 stopped; "
        "2 wrong arguments; 130 interrupted.",
    )
    parser.add_argument("input", metavar="INPUT", help="a directory, or one file")
    parser.add_argument("output", metavar="OUTPUT", help="the directory of the shards; made if it is not there")
    work_settings = [setting for setting in settings_of(DispatcherOptions) if setting.field in WORK]
    add_flags(parser.add_argument_group("files"), settings_of(FilesOptions))
    add_flags(parser.add_argument_group("dispatcher"), work_settings)
    add_flags(parser.add_argument_group("GPU route"), settings_of(GpuRouteOptions))
    namespace = parser.parse_args(argv)
    files = FilesOptions(**resolve(parser, namespace, settings_of(FilesOptions), environ))
    work = DispatcherOptions(**resolve(parser, namespace, work_settings, environ))
    try:
        gpu = GpuRouteOptions(**resolve(parser, namespace, settings_of(GpuRouteOptions), environ))
    except ValueError as error:
        parser.error(str(error))
    return Arguments(Path(namespace.input), Path(namespace.output), files, with_cache_dir(work, environ), gpu)


def tokenize_files(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
) -> int:
    """Run the command; the result is the exit status."""
    arguments = parse(argv, environ)
    try:
        with locked(arguments.output):
            manifest = _run(arguments, sys.stderr, clock)
    except FilesError as error:
        print(f"sidetok tokenize-files: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsidetok tokenize-files: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    report(manifest, sys.stderr)
    return 3 if manifest["n_left_out"] else 0


@contextlib.contextmanager
def locked(output: Path) -> Iterator[None]:
    """Keep other runs away from a directory. Raises `FilesError` when one is at work there."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with (output / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FilesError(f"{output}: another run is at work there") from None
            yield
    except OSError as error:
        raise FilesError(f"{output}: {error.strerror}") from None


def report(manifest: Mapping[str, Any], stream: TextIO) -> None:
    """Say what was written, and what was not."""
    for failure in manifest["left_out"][:MAX_SHOWN]:
        print(f"left out: {failure['source']}, record {failure['record']}: {failure['reason']}", file=stream)
    if (more := manifest["n_left_out"] - MAX_SHOWN) > 0:
        print(f"left out: {more} more, which manifest.json names", file=stream)
    if not_read := manifest["not_read"]:
        print(f"not read: {len(not_read)} files with other names, such as {not_read[0]}", file=stream)
    print(
        f"{manifest['n_tokens']:,} ids of {manifest['n_documents']:,} documents in {len(manifest['shards'])} shards "
        f"({manifest['id_type']}), {manifest['n_left_out']} left out",
        file=stream,
    )


def _run(arguments: Arguments, stream: TextIO, clock: Callable[[], float]) -> dict[str, Any]:
    # Imported late: a wrong flag or --help must not wait for the engines to load.
    from service.files.engine import Engine
    from service.files.plan import make_plan, write_manifest
    from service.files.progress import Progress
    from service.files.run import UnitRun

    files = arguments.files
    engine = Engine(files, arguments.work, arguments.gpu)
    try:
        plan = make_plan(arguments.source, arguments.output, files, arguments.work, engine)
        shows = files.progress == "always" or (files.progress == "auto" and stream.isatty())
        progress = Progress(stream if shows else None, plan.n_bytes, clock)
        n_failures, n_bytes = 0, 0
        for unit, (first, end) in enumerate(plan.units):
            sizes = [source.n_bytes for source in plan.sources[first:end]]
            progress.begin_unit(sizes, first, n_bytes)
            n_before = progress.n_documents
            shards = UnitRun(plan, unit, engine, progress.count, n_failures).work()
            if progress.n_documents == n_before:
                progress.skip(sum(sizes))
            n_failures += sum(len(shard["failures"]) for shard in shards)
            n_bytes += sum(sizes)
        progress.clear()
        return write_manifest(plan)
    finally:
        engine.close()
