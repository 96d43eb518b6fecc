"""toktier as a contender, on its CPU or its GPU path, with the file at hand instead of one from a hub.

Its fast paths are for certain files only, known by their digest. Its own manifest says which; any other file takes its
reference path, and then there is nothing to compare.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from loadtest.bench.contender import Batch, Contender, Unavailable


def cpu(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """Its certified CPU path."""
    return _contender(file, folder, "cpu")


def gpu(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """Its GPU path, for every size of input."""
    return _contender(file, folder, "cuda")


def _contender(file: bytes, folder: Path, device: str) -> Contender:
    try:
        library = importlib.import_module("toktier")
        manifests = importlib.import_module("toktier.artifacts.manifest")
    except ImportError as error:
        raise Unavailable("toktier is not installed") from error
    tables = Path(str(library.__file__)).parent / "artifacts" / "tables" / "artifact_manifest.v1.json"
    family, entry = _family_of(json.loads(tables.read_text()), file)
    manifest = manifests.ArtifactManifest.from_mapping({family: entry})
    cache = Path(tempfile.mkdtemp(prefix="toktier-", dir=folder))
    artifacts = cache / "artifacts" / manifest.get(family).directory_name
    artifacts.mkdir(parents=True)
    (artifacts / "tokenizer.json").write_bytes(file)
    config = library.Config(home=cache, cache_dir=cache, state_dir=cache / "state", offline=True)
    try:
        tokenizer = library.load(family, config=config, manifest=manifest, device=device, gpu_min_bytes=1)
    except Exception as error:
        raise Unavailable(f"{type(error).__name__}: {str(error)[:200]}") from error

    def encode(batch: Batch) -> list[Any]:
        if len(batch.texts) == 1:
            return [tokenizer.encode(batch.texts[0], lookup="off")]
        encodings: list[Any] = tokenizer.encode_batch(batch.texts)
        return encodings

    return Contender(
        encode,
        lambda answer: [np.array(encoding.ids, np.uint32) for encoding in answer],
        threads="1",
        remembers=device == "cpu",
        detail=f"{version('toktier')}, {family}, {device}",
    )


def _family_of(manifest: dict[str, Any], file: bytes) -> tuple[str, dict[str, Any]]:
    """The family whose tokenizer.json is this file, with that file alone."""
    digest = hashlib.sha256(file).hexdigest()
    for family, entry in manifest.items():
        if entry["files"].get("tokenizer.json", {}).get("sha256") == digest:
            return family, {**entry, "files": {"tokenizer.json": {"sha256": digest, "size": len(file)}}}
    raise Unavailable("toktier has no fast path for this file")
