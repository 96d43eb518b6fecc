"""What a run reads and writes: decided once, kept in `plan.json`, so that a later run can go on and not go astray."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dispatcher.options import DispatcherOptions
from service.files.engine import Engine
from service.files.errors import FilesError
from service.files.options import FilesOptions
from service.files.shard import PARTIAL, is_whole, read_json, write_json
from service.files.sources import Source, base_of, find_sources, groups

PLAN, MANIFEST = "plan.json", "manifest.json"
VERSION = 1
KEPT = ("input_format", "field", "text_unit", "special_tokens", "output_format", "unit_bytes", "shard_tokens")
"""Options that decide what is in the shards."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. It can be sent to other processes that see the same directories."""

    base: Path
    output: Path
    options: FilesOptions
    sources: tuple[Source, ...]
    unknown: tuple[str, ...]
    """Files that no format fits; they are not read."""
    units: tuple[tuple[int, int], ...]
    """Ranges of sources that are worked on together."""
    id_type: str
    facts: dict[str, Any]
    """What `plan.json` says."""

    @property
    def n_bytes(self) -> int:
        """Of all sources."""
        return sum(source.n_bytes for source in self.sources)


def make_plan(source: Path, output: Path, options: FilesOptions, work: DispatcherOptions, engine: Engine) -> Plan:
    """Look at the input, and open the output directory or go on in it.

    Raises `FilesError` for an input without files, and for an output of another run.
    """
    if not source.exists():
        raise FilesError(f"{source}: no such file or directory")
    if output.resolve().is_relative_to(source.resolve()):
        raise FilesError(f"{output}: the output directory lies inside the input; choose another one")
    sources, unknown = find_sources(source, options.input_format)
    if not sources:
        raise FilesError(f"{source}: there is no file to read{_hint(unknown)}")
    if options.overwrite:
        remove_output(output)
    facts = {
        "format": "sidetok ids",
        "version": VERSION,
        "tokenizer": engine.tokenizer.spec.digest,
        "vocab_size": engine.tokenizer.vocab_size,
        "id_type": engine.id_type,
        "eos_id": engine.eos_id,
        "options": {
            **{name: getattr(options, name) for name in KEPT},
            "max_document_bytes": options.max_document_bytes,
            "max_reference_bytes": work.max_reference_bytes,
        },
        "sources": [asdict(source) for source in sources],
    }
    _keep(output, facts)
    units = tuple(groups(sources, options.unit_bytes))
    return Plan(base_of(source), output, options, tuple(sources), tuple(unknown), units, engine.id_type, facts)


def remove_output(output: Path) -> None:
    """Remove the files that a run writes, and no others."""
    for pattern in ("shard-*", PLAN, MANIFEST, f"*{PARTIAL}"):
        for path in output.glob(pattern):
            path.unlink()


def shard_name(unit: int, part: int) -> str:
    """The name of a shard, without its ending."""
    return f"shard-{unit:05}-{part:05}"


def finished_shards(plan: Plan, unit: int) -> list[dict[str, Any]]:
    """The records of a unit's shards, up to the first that is missing or damaged; what comes after it is removed."""
    shards: list[dict[str, Any]] = []
    while True:
        record = read_json(plan.output / f"{shard_name(unit, len(shards))}.json")
        if record is None or not all(is_whole(plan.output, facts) for facts in record["files"]):
            break
        shards.append(record)
        if record["is_last"]:
            break
    kept = {record["name"] for record in shards}
    for path in plan.output.glob(f"shard-{unit:05}-*"):
        if path.name.split(".")[0] not in kept or path.name.endswith(PARTIAL):
            path.unlink()
    return shards


def write_manifest(plan: Plan) -> dict[str, Any]:
    """Collect the records of all shards in `manifest.json`; returns what it says.

    Raises `FilesError` when a unit is not finished.
    """
    shards: list[dict[str, Any]] = []
    for unit in range(len(plan.units)):
        part = 0
        while True:
            record = read_json(plan.output / f"{shard_name(unit, part)}.json")
            if record is None:
                raise FilesError(f"{shard_name(unit, part)} is missing: run the same command again")
            shards.append(record)
            part += 1
            if record["is_last"]:
                break
    failures = [failure for shard in shards for failure in shard.pop("failures")]
    totals = {name: sum(shard[name] for shard in shards) for name in ("n_documents", "n_tokens", "n_chars")}
    manifest = {
        **plan.facts,
        **totals,
        "n_left_out": len(failures),
        "left_out": failures,
        "not_read": list(plan.unknown),
        "shards": shards,
    }
    write_json(plan.output / MANIFEST, manifest)
    return manifest


def _keep(output: Path, facts: dict[str, Any]) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        if (output / PLAN).exists():
            _compare(output, facts)
        else:
            if any(output.glob("shard-*")):
                raise FilesError(f"{output}: there are shards without {PLAN}; choose another directory or --overwrite")
            write_json(output / PLAN, facts)
    except OSError as error:
        raise FilesError(f"{output}: {error.strerror}") from None


def _compare(output: Path, facts: dict[str, Any]) -> None:
    known = read_json(output / PLAN) or {}
    differs = [name for name, value in facts.items() if known.get(name) != value]
    if differs:
        raise FilesError(
            f"{output}: an earlier run had another {' and another '.join(differs)}; choose another directory "
            "or --overwrite"
        )


def _hint(unknown: list[str]) -> str:
    return f"; {len(unknown)} files have other names, such as {unknown[0]} (--input-format)" if unknown else ""
