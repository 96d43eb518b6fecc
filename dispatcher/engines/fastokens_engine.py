"""fastokens: the default engine. Bounded caches, releases the GIL, one instance for all threads."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from itertools import pairwise

import numpy as np
from fastokens._native import Tokenizer

from dispatcher.engines.engine import is_fault, reason_of
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec

LONG_S = "\u017f"
LONG_S_AFTER_APOSTROPHE = f"'{LONG_S}"
"""The only text it is known to split differently: U+017F folds to `s` in a contraction, and it does not see that."""


class FastokensEngine:
    """One `fastokens` tokenizer, warmed up at load: its first call compiles the split pattern, about 0.1 s."""

    name = "fastokens"
    version = version("fastokens")
    guard_digest = hashlib.sha256(LONG_S_AFTER_APOSTROPHE.encode()).hexdigest()[:16]

    def __init__(self, text: str, spec: TokenizerSpec) -> None:
        """Load the text of a tokenizer.json. Raises `UnsupportedTokenizer` with the library's reason."""
        self._encode_batch = _load(text, spec).encode_batch_flat
        self._encode_batch(["Warm up: d\u00e9j\u00e0 vu 1234\n"])

    def encode(self, document: str) -> bytes:
        """See `CpuEngine`."""
        ids: bytes = self._encode_batch([document])[0]
        return ids

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """See `CpuEngine`."""
        ids, offsets = self._encode_batch(documents)
        bounds = (4 * np.frombuffer(offsets, "<u8")).tolist()
        return [ids[start:end] for start, end in pairwise(bounds)]

    def guard(self, document: str) -> str | None:
        """See `CpuEngine`."""
        # One character is found fifty times as fast as two, and almost no text has it.
        return "long_s" if LONG_S in document and LONG_S_AFTER_APOSTROPHE in document else None


def _load(text: str, spec: TokenizerSpec) -> Tokenizer:
    try:
        return Tokenizer.from_json_str(text)
    except BaseException as error:
        if not is_fault(error):
            raise
        refusal = reason_of(error)
    # It refuses a vocabulary whose ids have holes. An entry that no text can produce fills a hole without a trace in
    # the results; the proof that follows has to agree.
    if spec.model_type == "BPE" and (filled := _without_holes(text)):
        try:
            return Tokenizer.from_json_str(filled)
        except BaseException as error:
            if not is_fault(error):
                raise
            refusal = reason_of(error)
    raise UnsupportedTokenizer(refusal)


def _without_holes(text: str) -> str | None:
    """The file with unreachable entries at unused ids; None when there are none to fill."""
    file = json.loads(text)
    vocab = file["model"]["vocab"]
    used = set(vocab.values())
    n_ids = max(used, default=-1) + 1
    # An id may be as large as four billions.
    if not 0 < n_ids - len(used) <= len(used):
        return None
    holes = set(range(n_ids)) - used
    vocab |= {f"\ue000unused {i}\ue000": i for i in holes}
    return json.dumps(file)
