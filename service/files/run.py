"""Units of a plan: their sources are read, encoded and written as shards, from where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from service.files.engine import Engine, Packed, Place
from service.files.errors import FilesError
from service.files.plan import Plan, finished_shards, shard_name
from service.files.records import Reader, Record
from service.files.shard import Writer, write_json, writer

OnPacked = Callable[[Packed], None]


class UnitRun:
    """One unit of a plan. Two processes must not work on the same one."""

    def __init__(self, plan: Plan, unit: int, engine: Engine, on_packed: OnPacked, n_failures: int = 0) -> None:
        """`on_packed` hears of ids as they are written; `n_failures` were counted before."""
        self._plan = plan
        self._unit = unit
        self._engine = engine
        self._on_packed = on_packed
        self._n_failures = n_failures

    def work(self) -> list[dict[str, Any]]:
        """The records of all shards of the unit; those that are there already are not made again.

        Raises `FilesError` when there were more failures than allowed, and when a shard cannot be written.
        """
        shards = finished_shards(self._plan, self._unit)
        self._n_failures += sum(len(shard["failures"]) for shard in shards)
        if shards and shards[-1]["is_last"]:
            self._check_failures()
            return shards
        first, _ = self._plan.units[self._unit]
        place: Place = tuple(shards[-1]["next"]) if shards else (first, 0)
        groups = self._engine.pack(self._records(place))
        try:
            return [*shards, *self._write(groups, len(shards), place)]
        except OSError as error:
            raise FilesError(f"{self._plan.output}: {error.strerror or error}") from None

    def _records(self, place: Place) -> Iterator[tuple[int, Record, Callable[[], int]]]:
        _, end = self._plan.units[self._unit]
        for index in range(place[0], end):
            reader = Reader(self._plan.base, self._plan.sources[index], self._plan.options)
            for record in reader.records(place[1] if index == place[0] else 0):
                yield index, record, reader.position

    def _write(self, groups: Iterator[Packed], part: int, place: Place) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = []
        group = next(groups, None)
        while not shards or group is not None:
            shard = _Shard(self._plan, self._unit, part + len(shards), place)
            try:
                while group is not None and not shard.is_full:
                    self._n_failures += len(group.failures)
                    self._check_failures()
                    shard.add(group)
                    self._on_packed(group)
                    group = next(groups, None)
                shards.append(shard.finish(is_last=group is None))
            except BaseException:
                shard.discard()
                raise
            place = shard.place
        return shards

    def _check_failures(self) -> None:
        if self._n_failures > self._plan.options.max_errors:
            raise FilesError(f"{self._n_failures} files and records could not be read (--max-errors); the run stops")


class _Shard:
    """One shard while it is written."""

    def __init__(self, plan: Plan, unit: int, part: int, place: Place) -> None:
        self._plan = plan
        self._first = self.place = place
        self._name = shard_name(unit, part)
        self._writer: Writer = writer(plan.output, self._name, plan.id_type, plan.options.output_format)
        self._counts = {"n_documents": 0, "n_tokens": 0, "n_chars": 0}
        self._failures: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        """Whether what follows belongs to the next shard."""
        return self._counts["n_tokens"] >= self._plan.options.shard_tokens

    def add(self, group: Packed) -> None:
        """Write ids."""
        self._writer.add(group.ids, group.lengths)
        self.place = group.done
        self._counts["n_documents"] += group.lengths.size
        self._counts["n_tokens"] += group.ids.size
        self._counts["n_chars"] += group.n_chars
        self._failures += [
            {"source": self._plan.sources[one.source].path, "record": one.record, "reason": one.reason}
            for one in group.failures
        ]

    def finish(self, is_last: bool) -> dict[str, Any]:
        """Put the files in place, and then the record that makes them count."""
        record = {
            "name": self._name,
            "files": self._writer.finish(),
            **self._counts,
            "first": list(self._first),
            "next": list(self.place),
            "is_last": is_last,
            "failures": self._failures,
        }
        write_json(self._plan.output / f"{self._name}.json", record)
        return record

    def discard(self) -> None:
        """Remove what was written."""
        self._writer.discard()
