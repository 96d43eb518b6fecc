"""Whether the ids that came over the wire are right: those of `tokenizers` on the same file, or of another server."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from dispatcher.embedded import embedded_tokenizer_json
from gpu_core.errors import TokenizerFileError
from loadtest.api import Api, Ids
from loadtest.errors import BadOption, TargetUnreachable, UnreadableAnswer
from loadtest.observed import Observed
from loadtest.plan import BATCH
from loadtest.pool import Pool
from loadtest.reference import load_reference
from loadtest.target import Target
from loadtest.tokenizer_file import read_tokenizer_file
from loadtest.wire import Answer

Ask = Callable[[int, list[memoryview]], list[Ids]]
"""Gets a kind of request and its documents; the right ids of each. Raises `TargetUnreachable`, `UnreadableAnswer`."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Who says what is right, or why nobody does."""

    ask: Ask | None
    reason: str
    """Where the judgement comes from, or why nothing is checked."""
    n_threads: int = 1
    """How many questions it may be asked at a time."""


def find_judge(file: str, served_digest: str | None, ids_are_of_text: bool) -> Judge:
    """The reference for a given file, or for the embedded model if its digest is the one served.

    Raises `BadOption` for a file that cannot be loaded, or that is not the one the server says it serves.
    """
    if not ids_are_of_text:
        return Judge(None, "off: the ids are those of a rendered conversation, and no --check-against is given")
    if file:
        return _of_tokenizer(_load(file, served_digest), "the file of --tokenizer")
    try:
        embedded = embedded_tokenizer_json()
    except TokenizerFileError:
        return Judge(None, "off: no --tokenizer, and the embedded model is not installed here")
    if served_digest != hashlib.sha256(embedded).hexdigest():
        return Judge(None, "off: no --tokenizer, and the server does not say that it serves the embedded model")
    return _of_tokenizer(load_reference(embedded), "the embedded tokenizer")


def other_server(target: Target, api: Api) -> Judge:
    """Another server that is asked the same, one request at a time, after the load."""

    def ask(kind: int, documents: list[memoryview]) -> list[Ids]:
        path = api.batch_path if kind == BATCH else api.path
        body = b"".join(api.body(kind, documents))
        status, answer, sections = target.post(path, api.content_type, body)
        if status != 200:
            raise UnreadableAnswer(f"{target} answers {status}")
        return api.ids(kind, Answer(status, len(answer), sections, [answer]))

    return Judge(ask, f"the answers of {target}")


def _load(file: str, served_digest: str | None) -> Tokenizer:
    data = read_tokenizer_file(file)
    try:
        tokenizer = load_reference(data)
    # The library raises plain exceptions for what it cannot read.
    except Exception as error:
        raise BadOption(f"--tokenizer {file}: cannot be loaded ({type(error).__name__})") from error
    if served_digest is not None and served_digest != hashlib.sha256(data).hexdigest():
        raise BadOption(f"--tokenizer {file}: is not the file that the server serves; their digests differ")
    return tokenizer


def _of_tokenizer(tokenizer: Tokenizer, reason: str) -> Judge:
    def ask(kind: int, documents: list[memoryview]) -> list[Ids]:
        # The pieces of a conversation are one text.
        texts = list(map(bytes, documents)) if kind == BATCH else [b"".join(documents)]
        # This call makes no offsets, and so takes less time and memory than `encode`.
        encodings = (tokenizer.encode_batch_fast([text.decode()])[0] for text in texts)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    return Judge(ask, reason, len(os.sched_getaffinity(0)))


def check(
    observed: Observed,
    pool: Pool,
    judge: Judge,
    from_ns: int = 0,
    progress: Callable[[int, int], None] = lambda n_done, n_all: None,
) -> dict[str, Any]:
    """Compare the answers kept. Differences are counted by group; no text is repeated.

    Groups with requests from `from_ns` on, of which none was compared, are named. What the judge cannot answer counts
    as `n_unjudged`, neither right nor wrong.
    """
    plan = observed.plan
    if judge.ask is None:
        return {"checked": False, "reference": judge.reason}
    ask = judge.ask

    def is_right(row: int) -> bool | None:
        try:
            right = ask(int(plan.kind[row]), [pool.text(*place) for place in plan.documents(row)])
        except (TargetUnreachable, UnreadableAnswer):
            return None
        answered = observed.ids[row]
        return len(right) == len(answered) and all(map(np.array_equal, right, answered))

    found: dict[int, bool | None] = {}
    # The reference lets go of the interpreter while it encodes.
    with ThreadPoolExecutor(judge.n_threads) as executor:
        for row, verdict in zip(observed.ids, executor.map(is_right, observed.ids), strict=True):
            found[row] = verdict
            progress(len(found), len(observed.ids))
    different = Counter(plan.groups[plan.group[row]] for row, verdict in found.items() if verdict is False)
    answerable = (plan.at_ns >= from_ns) & plan.has_ids
    asked = [group for k, group in enumerate(plan.groups) if (answerable & (plan.group == k)).any()]
    seen = {plan.groups[plan.group[row]] for row in observed.ids}
    return {
        "checked": True,
        "reference": judge.reason,
        "n_equal": sum(verdict is True for verdict in found.values()),
        "n_different": different.total() + len(observed.unreadable),
        "n_unreadable": len(observed.unreadable),
        "n_unjudged": sum(verdict is None for verdict in found.values()),
        "n_tokens": int(sum(len(ids) for row in observed.ids.values() for ids in row)),
        "n_bytes": int(sum(plan.n_bytes[row] for row in observed.ids)),
        "different": dict(different),
        "groups_not_checked": [group for group in asked if group not in seen],
    }
