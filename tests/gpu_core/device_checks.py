"""Conformance on a device: ids of the GPU against those of the reference, computed on the same machine.

    python -m tests.gpu_core.device_checks DATA [--extent least|short|full] [--families a,b] [--output counts.json]

Ends with status 1 when one document differs. The order of the batches is random, so that sizes and numbers of
documents change from one replay to the next on the same memory.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from gpu_core.encoder import Encoder, load
from gpu_core.layout import FLAG_IDS
from gpu_core.options import GpuOptions
from gpu_core.record import source_digest
from gpu_core.transfer import FAR, NEAR, choose
from tests.gpu_core.decimal_checks import wrong_decimals
from tests.gpu_core.decode_checks import wrong_texts
from tests.gpu_core.device_data import DeviceData, Ids, Reference, plain_literals, spliced, windows
from tests.gpu_core.long_texts import RUNS, random_text
from tests.gpu_core.normal_checks import AMOUNTS, SecondReplays, expected_ids, normal_batches

Batch = list[bytes]
CORPORA = ("books", "code", "multilingual", "agentic")
POISON = 0xFFFFFFFF


class Checker:
    """Batches of one family through one encoder, compared document by document."""

    def __init__(self, family: str, data: bytes, options: GpuOptions) -> None:
        self.family = family
        self.encoder = load(data, options)
        self.n_checked: Counter[str] = Counter()
        self.needs_cpu: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def description(self) -> dict[str, str]:
        """What the checks ran on."""
        found: dict[str, str] = self.encoder.device.description  # type: ignore[attr-defined]
        return found | {"tokenizers": tokenizers.__version__, "numpy": np.__version__}

    def check(self, name: str, batch: Batch, expected: list[Ids]) -> None:
        """One batch; every document is equal or named as one for the CPU."""
        self._poison(sum(map(len, batch)))
        encoding = self.encoder.encode(batch)
        for i, ids in enumerate(expected):
            if i in encoding.needs_cpu:
                self.needs_cpu[f"{name}: {encoding.needs_cpu[i]}"] += 1
                continue
            self.n_checked[name] += 1
            got = encoding.ids(i)
            if not np.array_equal(got, ids):
                same = min(len(got), len(ids))
                differ = np.flatnonzero(got[:same] != ids[:same])
                where = int(differ[0]) if len(differ) else same
                self.wrong.append(
                    f"{self.family} {name}: document {i} of {len(batch)} ({len(batch[i])} bytes of "
                    f"{sum(map(len, batch))}): {len(got)} ids instead of {len(ids)}, first difference at {where}"
                )
        # A sanitizer keeps the frames of launches, and with them what they refer to.
        encoding.release()

    def check_other_ways(self, batch: Batch) -> None:
        """Counts, token starts and resident results agree with plain ids; token starts rise and begin at 0."""
        plain = self.encoder.encode(batch, token_starts=True)
        counts = self.encoder.encode(batch, count_only=True)
        resident = self.encoder.encode_resident(batch, token_starts=True)
        ids, borders = _on_host(resident.ids), _on_host(resident.document_tokens)
        for i in range(len(batch)):
            # Second tries are for plain ids and counts only.
            if i in plain.needs_cpu or i in resident.needs_cpu:
                continue
            starts = plain.token_starts(i)
            good = (
                counts.n_tokens(i) == plain.n_tokens(i)
                and np.array_equal(ids[borders[i] : borders[i + 1]], plain.ids(i))
                and (len(starts) == 0 or (starts[0] == 0 and (np.diff(starts.astype(np.int64)) > 0).all()))
                and (len(starts) == 0 or starts[-1] < len(batch[i]))
            )
            self.n_checked["other ways"] += 1
            if not good:
                self.wrong.append(f"{self.family} other ways: document {i} of {len(batch)}")
        plain.release()
        resident.release()

    def check_packed(self, batch: Batch) -> None:
        """Documents as one text have the ids that they have as several."""
        plain = self.encoder.encode(batch)
        packed = self.encoder.encode_packed(b"".join(batch), np.cumsum([0, *map(len, batch)]))
        tokens = packed.document_tokens
        assert packed.ids is not None
        for i in range(len(batch)):
            if i in packed.needs_cpu or i in plain.needs_cpu:
                continue
            self.n_checked["packed"] += 1
            if not np.array_equal(packed.ids[tokens[i] : tokens[i + 1]], plain.ids(i)):
                self.wrong.append(f"{self.family} packed: document {i} of {len(batch)}")
        plain.release()
        packed.release()

    def check_decimals(self, batch: Batch) -> None:
        """Ids as decimal numbers."""
        n_checked, wrong = wrong_decimals(self.encoder, batch)
        self.n_checked["decimals"] += n_checked
        self.wrong += [f"{self.family} {line}" for line in wrong]

    def check_transfers(self, batch: Batch) -> None:
        """Every way in and out gives the same ids as the one that the context takes itself."""
        n_bytes = sum(map(len, batch))
        lease = self.encoder.lease(n_bytes, len(batch))
        context: Any = lease.context
        context.text[:n_bytes] = b"".join(batch)
        context.document_starts[: len(batch) + 1] = np.cumsum([0, *map(len, batch)])
        # Not by `encode`, which may replay a document with a long run in pieces only, nor by `launch`, which may bring
        # text into normal form at once.
        context.launch_as(choose(n_bytes, len(batch), False), n_bytes, len(batch), FLAG_IDS)
        context.block()
        tokens = context.document_tokens[: len(batch) + 1].copy()
        expected = context.ids[: context.n_tokens()].copy()
        for transfer in (NEAR, FAR):
            context.ids[: len(expected)] = POISON
            context.document_tokens[: len(tokens)] = POISON
            context.launch_as(transfer, n_bytes, len(batch), FLAG_IDS)
            context.block()
            self.n_checked["transfers"] += 1
            same = np.array_equal(context.ids[: len(expected)], expected)
            if not same or not np.array_equal(context.document_tokens[: len(tokens)], tokens):
                self.wrong.append(f"{self.family} transfer {transfer.text}: {len(batch)} documents, {n_bytes} bytes")
        lease.release()

    def _poison(self, n_bytes: int) -> None:
        for free in self.encoder._free:
            for context in free:
                context.ids[:n_bytes] = POISON
                context.document_tokens[:1024] = POISON


def _on_host(array: Any) -> Ids:
    """A device array's content, once it is known to speak both protocols."""
    interface = array.__cuda_array_interface__
    if interface["typestr"] != "<u4" or not hasattr(array, "__dlpack__"):
        raise TypeError("a resident result does not speak __cuda_array_interface__ and DLPack")
    content: Ids = array.get()
    return content


def batches(rng: random.Random, data: DeviceData, literals: list[bytes], extent: str) -> list[tuple[str, Batch]]:
    """Windows of all corpora in many shapes, in random order."""
    if extent == "least":
        return _few_batches(rng, data, literals)
    found: list[tuple[str, Batch]] = []
    sizes = [1, 2, 7, 63, 64, 65, 831, 832, 833, 895, 896, 897, 1024, 4000, 20_000]
    sizes += [] if extent == "short" else [65_000, 66_000, 250_000, 480_000, 1_000_000, 3_800_000]
    counts, longest, n_spliced = ((2, 33, 64), 200, 2) if extent == "short" else ((2, 31, 32, 33, 64, 500), 2000, 60)
    for name in CORPORA:
        text = data.corpus(name).encode()
        for size in sizes:
            repeats = 1 if extent == "short" or size > 100_000 else 4
            found += [(f"{name} one", windows(rng, text, [size])) for _ in range(repeats)]
        for n in counts:
            found.append((f"{name} many", windows(rng, text, [rng.randrange(longest) for _ in range(n)])))
        found.append((f"{name} spliced", [spliced(rng, text, literals, 4000) for _ in range(n_spliced)]))
    adversarial = data.adversarial()
    found.append(("adversarial", adversarial[:100] if extent == "short" else adversarial))
    if extent == "full":
        for size in (1, 3, 8, 30):
            found.append(("tiny documents", windows(rng, text, [rng.randrange(size + 1) for _ in range(20_000)])))
        found.append(("adversarial", rng.sample(adversarial, 1000)))
        found.append(("64 of 8 KiB", windows(rng, data.corpus("books").encode(), [8192] * 64)))
    lengths = (513, 900, 4000) if extent == "short" else (513, 900, 4000, 30_000)
    for kind in RUNS:
        texts = [random_text(rng, kind, [], lengths).encode() for _ in range(2 if extent == "short" else 8)]
        found += [(f"long runs, {kind}", texts), (f"one long run, {kind}", texts[:1])]
        if extent == "full":
            found.append((f"one long run, {kind}", [random_text(rng, kind, [], (150_000,)).encode()]))
    rng.shuffle(found)
    return found


def _few_batches(rng: random.Random, data: DeviceData, literals: list[bytes]) -> list[tuple[str, Batch]]:
    """What a sanitizer gets through in a minute, with every stage in it."""
    code, multilingual = data.corpus("code").encode(), data.corpus("multilingual").encode()
    return [
        ("one", windows(rng, code, [3000])),
        ("many", windows(rng, multilingual, [rng.randrange(120) for _ in range(40)])),
        ("spliced", [spliced(rng, multilingual, literals, 2500)]),
        ("spliced", [spliced(rng, code, literals, 700) for _ in range(3)]),
        ("empty", [b"", b"a", b""]),
        (
            "long runs",
            [random_text(rng, kind, [], (600, 1500)).encode() for kind in ("one letter", "cjk", "line ends")],
        ),
        ("one long run", [b"ab" * 1500]),
    ]


def check_family(family: str, data: DeviceData, extent: str) -> Checker:
    """All checks of one family."""
    began = time.monotonic()
    file = data.tokenizer_json(family)
    top = {"least": 1 << 14, "short": 1 << 16, "full": 4 << 20}[extent]
    options = GpuOptions(size_classes_bytes=tuple(s for s in GpuOptions().size_classes_bytes if s <= top),
                         contexts_per_class=4, token_starts=True)  # fmt: skip
    checker, reference = Checker(family, file, options), Reference(file)
    loaded = time.monotonic()
    literals = plain_literals(checker.encoder.spec)
    rng = random.Random(family)
    work = batches(rng, data, literals, extent)
    expected = reference.ids_of_batches([batch for _name, batch in work])
    known = time.monotonic()
    for (name, batch), ids in zip(work, expected, strict=True):
        checker.check(name, batch, ids)
    few = [batch for _name, batch in work if sum(map(len, batch)) < top][: 40 if extent == "full" else 6]
    for batch in few:
        checker.check_other_ways(batch)
        checker.check_transfers(batch)
        checker.check_packed(batch)
        checker.check_decimals(batch)
    for batch in [batch for _name, batch in work if 400_000 < sum(map(len, batch)) <= top][:8]:
        checker.check_decimals(batch)
    if checker.encoder.spec.normalizers == ("NFC",):
        _check_second_replays(checker, reference, data, rng, extent)
    if extent == "full":
        _check_cuts(checker, work, expected)
    decoded = rng.sample(expected, min(len(expected), {"least": 2, "short": 5, "full": 80}[extent]))
    n_compared, wrong = wrong_texts(file, checker.encoder.device, reference, decoded, rng)
    checker.n_checked["decode"] += n_compared
    checker.wrong += [f"{family} {line}" for line in wrong]
    eager = Checker(family, file, GpuOptions(size_classes_bytes=options.size_classes_bytes, eager=True))
    for (name, batch), ids in list(zip(work, expected, strict=True))[: 40 if extent == "full" else 5]:
        eager.check(f"eager {name}", batch, ids)
    checker.n_checked.update(eager.n_checked)
    checker.wrong += eager.wrong
    print(
        f"{family}: {checker.n_checked.total()} documents, {len(checker.wrong)} wrong, for the CPU "
        f"{dict(checker.needs_cpu)}; load {loaded - began:.1f} s, reference {known - loaded:.1f} s, "
        f"device {time.monotonic() - known:.1f} s",
        flush=True,
    )
    return checker


def _check_second_replays(
    checker: Checker, reference: Reference, data: DeviceData, rng: random.Random, extent: str
) -> None:
    """Text that is not in normal form, answered by the device alone, by the host after it, and as decimals."""
    names = CORPORA if extent == "full" else ("multilingual",)
    literals = plain_literals(checker.encoder.spec)
    work = normal_batches(rng, [data.corpus(name).encode() for name in names], literals, AMOUNTS[extent])
    replays = SecondReplays(checker.encoder)
    all_expected = expected_ids(reference, work)
    for (name, batch), expected in zip(work, all_expected, strict=True):
        checker._poison(sum(map(len, batch)))
        replays.check(name, batch, expected)
        known = [ids for ids in expected if ids is not None]
        if len(known) == len(batch):
            checker.check(name, batch, known)
    for _name, batch in work[:: max(1, len(work) // 20)]:
        checker.check_decimals(batch)
    for (name, batch), expected in list(zip(work, all_expected, strict=True))[:: 1 + len(work) // 40]:
        replays.check_at_once(name, batch, expected)
    checker.n_checked.update({f"normal form: {name}": n for name, n in replays.n_checked.items()})
    checker.needs_cpu.update({f"second replay, {name}": n for name, n in replays.left.items()})
    checker.wrong += [f"{checker.family} {line}" for line in replays.wrong]


def _check_cuts(checker: Checker, work: list[tuple[str, Batch]], expected: list[list[Ids]]) -> None:
    """Documents beyond the largest class, through a ladder with a small one."""
    whole, sizes = checker.encoder, GpuOptions(size_classes_bytes=(4096, 65536))
    checker.encoder = Encoder(whole.spec, whole.device, sizes, cuts=whole.cuts)
    for (name, batch), ids in zip(work, expected, strict=True):
        if 65536 < sum(map(len, batch)) < 1_100_000:
            checker.check(f"cut {name}", batch, ids)
    checker.encoder = whole


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--extent", choices=("least", "short", "full"), default="full")
    parser.add_argument("--families", default="")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    data = DeviceData(arguments.data)
    families = arguments.families.split(",") if arguments.families else data.families()
    sources = source_digest()
    counts: dict[str, int] = {}
    needs_cpu: dict[str, int] = {}
    wrong: list[str] = []
    device: dict[str, str] = {}
    for family in families:
        checker = check_family(family, data, arguments.extent)
        counts |= {f"{family}: {name}": count for name, count in sorted(checker.n_checked.items())}
        needs_cpu |= {f"{family}: {reason}": count for reason, count in sorted(checker.needs_cpu.items())}
        wrong += checker.wrong
        device = checker.description
    for line in wrong[:20]:
        print("WRONG", line)
    if arguments.output:
        arguments.output.write_text(
            json.dumps({"sources": sources, "counts": counts, "needs_cpu": needs_cpu, "wrong": wrong, "device": device})
        )
    print(f"{sum(counts.values())} documents equal or compared, {len(wrong)} wrong")
    return 1 if wrong or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
