"""Which engine serves a tokenizer, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from dispatcher.engines.engine import CpuEngine, is_fault, reason_of
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.proof import ProofCache, Verdict, prove
from gpu_core.spec import TokenizerSpec

SPARSE_IDS = 1 << 20
"""So many ids and four times the entries of a file: one beyond that is for the reference, since engines have a place
for every id up to it, and end the process when there is no memory for them."""


class EngineClass(Protocol):
    """A class of engines, before anything is loaded."""

    name: str
    version: str
    guard_digest: str

    def __call__(self, text: str, spec: TokenizerSpec) -> CpuEngine:
        """Load the text of a tokenizer.json. Raises `UnsupportedTokenizer`."""


class Choice(NamedTuple):
    """The engine, and one phrase that says why it is the one."""

    engine: CpuEngine
    reason: str


def fastokens() -> EngineClass:
    """Imported when wanted: a host that lacks the library, or whose CPU it was not built for, still serves."""
    from dispatcher.engines.fastokens_engine import FastokensEngine

    return FastokensEngine


def gigatoken() -> EngineClass:
    """Imported when wanted."""
    from dispatcher.engines.gigatoken_engine import GigatokenEngine

    return GigatokenEngine


FAST_ENGINES: Mapping[str, Callable[[], EngineClass]] = {"fastokens": fastokens, "gigatoken": gigatoken}
"""In the order in which `auto` tries them."""


def choose_engine(
    wanted: str,
    text: str,
    spec: TokenizerSpec,
    reference: ReferenceEngine,
    proofs: ProofCache,
    engines: Mapping[str, Callable[[], EngineClass]] = FAST_ENGINES,
) -> Choice:
    """The wanted engine if it is proven, for `auto` the first that is; else the reference.

    A fault of an engine becomes a part of the reason and is never raised.
    """
    if wanted == "reference":
        return Choice(reference, "asked for")
    if spec.dropout:
        return Choice(reference, "the model has BPE dropout, so its ids are random")
    if spec.max_id > SPARSE_IDS + 4 * (spec.vocab_size + len(spec.added_tokens)):
        return Choice(reference, f"its ids are sparse: they reach {spec.max_id:,}")
    refusals: list[str] = []
    for name in engines if wanted == "auto" else (wanted,):
        try:
            engine, verdict, phrase = _load_proven(engines[name](), text, spec, reference, proofs)
        except BaseException as error:
            if not is_fault(error):
                raise
            refusals.append(f"{name} does not load it: {reason_of(error)}")
            continue
        if engine is not None:
            return Choice(engine, "; ".join([phrase, *refusals]))
        refusals.append(f"{name} {verdict.reason}")
    return Choice(reference, "; ".join(refusals))


def _load_proven(
    engine_class: EngineClass, text: str, spec: TokenizerSpec, reference: ReferenceEngine, proofs: ProofCache
) -> tuple[CpuEngine | None, Verdict, str]:
    """The loaded engine, None when it is known or found not to be exact; the verdict; how it is known."""
    verdict = proofs.recall(engine_class, spec)
    if verdict is not None and not verdict.proven:
        return None, verdict, ""
    engine = engine_class(text, spec)
    when = "by an earlier start"
    if verdict is None:
        verdict = prove(engine, reference, spec)
        proofs.keep(engine_class, spec, verdict)
        when = "at this start"
    return (engine if verdict.proven else None), verdict, f"proven {when} on {verdict.n_cases:,} cases"
