"""The proof: an engine serves a tokenizer only after it agreed with the reference on every case of that tokenizer."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from dispatcher.engines.engine import CpuEngine, is_fault
from dispatcher.engines.reference_engine import REFERENCE_VERSION, ReferenceEngine
from dispatcher.proof_cases import proof_cases
from gpu_core.spec import TokenizerSpec

log = logging.getLogger("sidetok.proof")

PROOF_VERSION = 2
"""Raised with every change of the cases, so that older verdicts are not believed (a test watches over it)."""

CHUNK = 64
"""Cases that are also given to the engine together."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one proof."""

    proven: bool
    n_cases: int
    """Cases that the engine answered; guarded ones go to the reference and are not counted."""
    reason: str = ""
    """Why it is not proven. Names the family of cases, never a text."""


def prove(engine: CpuEngine, reference: ReferenceEngine, spec: TokenizerSpec) -> Verdict:
    """Compare ids on every proof case, up to the first that differs. Never raises for a fault of the engine."""

    def decode(sequences: list[list[int]]) -> list[str]:
        texts: list[str] = reference.tokenizer.decode_batch(sequences, skip_special_tokens=False)
        return texts

    n_cases = 0
    cases = ((family, text) for family, text in proof_cases(spec, decode) if text.isascii() or not engine.guard(text))
    while chunk := list(islice(cases, CHUNK)):
        family = chunk[0][0]
        try:
            expected = []
            for family, text in chunk:
                n_cases += 1
                expected.append(reference.encode(text))
                if engine.encode(text) != expected[-1]:
                    return Verdict(False, n_cases, f"differs from the reference on a case of: {family}")
            if engine.encode_many([text for _, text in chunk]) != expected:
                return Verdict(False, n_cases, f"differs from the reference on many documents, near: {family}")
        except BaseException as error:
            if not is_fault(error):
                raise
            return Verdict(False, n_cases, f"fails on a case of: {family} ({type(error).__name__})")
    return Verdict(True, n_cases)


class ProofSubject(Protocol):
    """What a verdict is about: an engine, loaded or not."""

    name: str
    version: str
    guard_digest: str


class ProofCache:
    """Verdicts on disk. What cannot be read or written is as good as absent: the proof is done again."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` None keeps nothing."""
        self._directory = directory / "proofs" if directory else None

    def recall(self, engine: ProofSubject, spec: TokenizerSpec) -> Verdict | None:
        """The verdict of an earlier proof, if it is about exactly this engine and this file."""
        if self._directory is None:
            return None
        key = _key(engine, spec)
        try:
            entry = json.loads(_path(self._directory, key).read_bytes())
            if entry["key"] != key or type(entry["proven"]) is not bool:
                return None
            return Verdict(entry["proven"], int(entry["n_cases"]), str(entry["reason"]))
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def keep(self, engine: ProofSubject, spec: TokenizerSpec, verdict: Verdict) -> None:
        """Write a verdict for later starts; a failure to do so is logged only."""
        if self._directory is None:
            return
        key = _key(engine, spec)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_atomically(_path(self._directory, key), json.dumps({"key": key, **asdict(verdict)}))
        except OSError as error:
            log.warning("a proof could not be kept and will be done again at the next start: %s", error)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see all of it or what was there before. Raises `OSError`."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _key(engine: ProofSubject, spec: TokenizerSpec) -> dict[str, str | int]:
    """Everything that a verdict depends on."""
    return {
        "digest": spec.digest,
        "engine": engine.name,
        "engine_version": engine.version,
        "guard": engine.guard_digest,
        "reference_version": REFERENCE_VERSION,
        "proof_version": PROOF_VERSION,
    }


def _path(directory: Path, key: dict[str, str | int]) -> Path:
    return directory / (hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32] + ".json")
