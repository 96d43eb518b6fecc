"""Whether the ids that came over the wire are the reference's: `tokenizers` on the same file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dispatcher.embedded import embedded_tokenizer_json
from gpu_core.errors import TokenizerFileError
from loadtest.errors import BadOption
from loadtest.observed import Observed
from loadtest.plan import BATCH
from loadtest.pool import Pool


@dataclass(frozen=True, slots=True)
class Judge:
    """The reference, or why there is none."""

    tokenizer: Tokenizer | None
    reason: str
    """Where the tokenizer comes from, or why nothing is checked."""


def find_judge(file: str, served_digest: str | None, ids_are_of_text: bool) -> Judge:
    """The reference for a given file, or for the embedded model if its digest is the one served.

    Raises `BadOption` for a file that cannot be loaded, or that is not the one the server says it serves.
    """
    if not ids_are_of_text:
        return Judge(None, "off: the ids are those of a rendered conversation")
    if file:
        return _of_file(file, served_digest)
    try:
        embedded = embedded_tokenizer_json()
    except TokenizerFileError:
        return Judge(None, "off: no --tokenizer, and the embedded model is not installed here")
    if served_digest != hashlib.sha256(embedded).hexdigest():
        return Judge(None, "off: no --tokenizer, and the server does not say that it serves the embedded model")
    return Judge(Tokenizer.from_str(embedded.decode()), "the embedded tokenizer")


def _of_file(file: str, served_digest: str | None) -> Judge:
    path = Path(file)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        data = path.read_bytes()
        tokenizer = Tokenizer.from_str(data.decode())
    # The library raises plain exceptions for what it cannot read.
    except Exception as error:
        raise BadOption(f"--tokenizer {file}: cannot be loaded ({type(error).__name__})") from error
    if served_digest is not None and served_digest != hashlib.sha256(data).hexdigest():
        raise BadOption(f"--tokenizer {file}: is not the file that the server serves; their digests differ")
    return Judge(tokenizer, "the file of --tokenizer")


def check(observed: Observed, pool: Pool, judge: Judge) -> dict[str, Any]:
    """Compare the answers kept. Differences are counted by group; no text is repeated."""
    plan = observed.plan
    if judge.tokenizer is None:
        return {"checked": False, "reference": judge.reason}
    n_equal = 0
    different: dict[str, int] = {}
    for row, answered in observed.ids.items():
        if _equal(judge.tokenizer, _texts(observed, pool, row), answered):
            n_equal += 1
        else:
            group = plan.groups[plan.group[row]]
            different[group] = different.get(group, 0) + 1
    asked = [group for k, group in enumerate(plan.groups) if not plan.refused[plan.group == k].any()]
    seen = {plan.groups[plan.group[row]] for row in observed.ids}
    return {
        "checked": True,
        "reference": judge.reason,
        "n_equal": n_equal,
        "n_different": sum(different.values()) + len(observed.unreadable),
        "n_unreadable": len(observed.unreadable),
        "n_tokens": int(sum(len(ids) for row in observed.ids.values() for ids in row)),
        "n_bytes": int(sum(plan.n_bytes[row] for row in observed.ids)),
        "different": different,
        "groups_not_checked": [group for group in asked if group not in seen],
    }


def _texts(observed: Observed, pool: Pool, row: int) -> list[str]:
    places = observed.plan.documents(row)
    if observed.plan.kind[row] == BATCH:
        return [str(pool.text(*place), "utf-8") for place in places]
    # The pieces of a conversation lie end to end.
    return [str(pool.text(places[0][0], sum(length for _, length in places)), "utf-8")]


def _equal(tokenizer: Tokenizer, texts: list[str], answered: list[Any]) -> bool:
    if len(texts) != len(answered):
        return False
    return all(
        np.array_equal(np.array(tokenizer.encode(text).ids, np.uint32), ids)
        for text, ids in zip(texts, answered, strict=True)
    )
