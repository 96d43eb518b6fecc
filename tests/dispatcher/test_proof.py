"""Promises of dispatcher.proof and dispatcher.proof_cases."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher.engines.choice import FAST_ENGINES, choose_engine
from dispatcher.engines.fastokens_engine import FastokensEngine
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.proof import PROOF_VERSION, ProofCache, Verdict, prove
from dispatcher.proof_cases import proof_cases, real_text
from dispatcher.tokenizer import load_tokenizer
from gpu_core.spec import TokenizerSpec, read_spec
from tests.data import tokenizer_json
from tests.fake_engines import FaultyEngine, MixingEngine, PanicException, WrongEngine

CASES_SHA256 = {2: "049468e17fa73a1e47db039f6d584465839db17448d1e7727721da5c9f5fbb56"}
"""By proof version. When this test fails, the cases have changed: raise PROOF_VERSION and add its line."""


def parts_of(family: str) -> tuple[str, TokenizerSpec, ReferenceEngine]:
    """The text, the spec and the reference of one family."""
    data = tokenizer_json(family)
    return data.decode(), read_spec(data), ReferenceEngine(data.decode())


def cases_of(family: str) -> list[tuple[str, str]]:
    """All proof cases of one family."""
    _, spec, reference = parts_of(family)
    return list(proof_cases(spec, lambda ids: reference.tokenizer.decode_batch(ids, skip_special_tokens=False)))


class Counting(FastokensEngine):
    """fastokens that counts its loads."""

    n_loads = 0

    def __init__(self, text: str, spec: TokenizerSpec) -> None:
        super().__init__(text, spec)
        Counting.n_loads += 1


def test_cases_are_pinned_to_the_version() -> None:
    """A kept verdict is about the very cases that this version has."""
    cases = [text for family in ("split_bpe", "overlapping") for _, text in cases_of(family)]
    digest = hashlib.sha256("\0".join(cases).encode()).hexdigest()
    assert CASES_SHA256[PROOF_VERSION] == digest


def test_cases_are_bounded_and_cover_every_family() -> None:
    """No family of cases is empty, and all of them together stay small."""
    cases = cases_of("overlapping")
    n_of = Counter(family for family, _ in cases)
    assert len(n_of) == 12
    assert min(n_of.values()) > 5
    assert len(cases) < 60_000
    assert sum(len(text) for _, text in cases) < 4_000_000


def test_added_tokens_are_glued_on_both_sides() -> None:
    """Every added token stands between letters in some case."""
    _, spec, _ = parts_of("byte_bpe")
    cases = {text for _, text in cases_of("byte_bpe")}
    assert {f"a{token.content}b" for token in spec.added_tokens} <= cases


def test_added_tokens_that_overlap_meet() -> None:
    """Literals of which one ends as another begins are joined in some case."""
    assert ("overlapping added tokens", "as><s>b") in cases_of("overlapping")


def test_real_text_has_many_scripts_and_code() -> None:
    """The bundled sample is long enough to mean something."""
    assert len(real_text()) > 35
    assert sum(map(len, real_text())) > 5_000


def test_proven_engine() -> None:
    """A true engine is proven, on the cases that its guard lets through."""
    text, spec, reference = parts_of("split_bpe")
    verdict = prove(FastokensEngine(text, spec), reference, spec)
    assert verdict.proven
    assert 20_000 < verdict.n_cases < len(cases_of("split_bpe"))


def test_wrong_engine() -> None:
    """A wrong engine is found out at once; the reason names no text."""
    _, spec, reference = parts_of("split_bpe")
    assert prove(WrongEngine(), reference, spec) == Verdict(
        False, 1, "differs from the reference on a case of: real text"
    )


def _regex(file: dict[str, Any], old: str, new: str) -> None:
    split = file["pre_tokenizer"]["pretokenizers"][0]
    assert old in split["pattern"]["Regex"]
    split["pattern"]["Regex"] = split["pattern"]["Regex"].replace(old, new)


MUTATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "digits alone": lambda file: _regex(file, "{1,3}", ""),
    "digits in fours": lambda file: _regex(file, "{1,3}", "{1,4}"),
    "case of contractions": lambda file: _regex(file, "(?i:", "(?:"),
    "no contraction of s": lambda file: _regex(file, "'s|", ""),
    "marks are letters": lambda file: _regex(file, r"\p{L}+", r"[\p{L}\p{M}]+"),
    "newlines after punctuation": lambda file: _regex(file, r"[\r\n]*", ""),
    "last blank": lambda file: _regex(file, r"\s+(?!\S)|", ""),
    "no NFC": lambda file: file.update(normalizer=None),
    "NFD": lambda file: file.update(normalizer={"type": "NFD"}),
    "prefix space": lambda file: file["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
    "no ignore_merges": lambda file: file["model"].update(ignore_merges=False, merges=file["model"]["merges"][:-1]),
    "merges by alphabet": lambda file: file["model"]["merges"].sort(),
    "no added token": lambda file: file.update(added_tokens=[]),
    "lstrip": lambda file: file["added_tokens"][0].update(lstrip=True),
    "rstrip": lambda file: file["added_tokens"][0].update(rstrip=True),
    "single_word": lambda file: file["added_tokens"][0].update(single_word=True),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_slightly_wrong_engine(name: str) -> None:
    """An engine that takes one rule of the file for another is found out."""
    text, spec, reference = parts_of("split_bpe")
    file = json.loads(text)
    MUTATIONS[name](file)
    # The reference itself, loaded from the changed file, plays the wrong engine: it can do every change.
    verdict = prove(ReferenceEngine(json.dumps(file)), reference, spec)
    assert not verdict.proven


def test_engine_that_mixes_up_documents() -> None:
    """Several documents in one call are a part of the proof."""
    text, spec, reference = parts_of("split_bpe")
    verdict = prove(MixingEngine(text), reference, spec)
    assert verdict == Verdict(False, 64, "differs from the reference on many documents, near: real text")


@pytest.mark.parametrize("error", [RuntimeError("x"), PanicException("x"), MemoryError()])
def test_faulty_engine(error: BaseException) -> None:
    """A fault or panic during the proof is a verdict, not an error."""
    _, spec, reference = parts_of("split_bpe")
    engine = FaultyEngine()
    engine.error = error
    verdict = prove(engine, reference, spec)
    assert not verdict.proven
    assert verdict.reason == f"fails on a case of: real text ({type(error).__name__})"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_interrupts_are_no_faults(error: BaseException) -> None:
    """What stops the process is not swallowed."""
    _, spec, reference = parts_of("split_bpe")
    engine = FaultyEngine()
    engine.error = error
    with pytest.raises(type(error)):
        prove(engine, reference, spec)


def test_reference_is_proven_by_itself() -> None:
    """The judge agrees with itself on every case, so no case is random or stateful."""
    _, spec, reference = parts_of("split_bpe")
    assert prove(reference, reference, spec).proven


def test_second_start_has_no_proof(cache_dir: Path) -> None:
    """A verdict is kept and believed at the next start."""
    data = tokenizer_json("split_bpe")
    first = load_tokenizer(data, cache_dir=cache_dir)
    second = load_tokenizer(data, cache_dir=cache_dir)
    assert (first.engine, second.engine) == ("fastokens", "fastokens")
    assert "proven at this start" in first.engine_reason
    assert "proven by an earlier start" in second.engine_reason
    assert [path.suffix for path in (cache_dir / "proofs").iterdir()] == [".json"]


def test_refuted_engine_is_not_even_loaded_again(cache_dir: Path) -> None:
    """A negative verdict is kept as well."""
    text, spec, reference = parts_of("overlapping")
    Counting.n_loads = 0
    reasons = [
        choose_engine("named", text, spec, reference, ProofCache(cache_dir), {"named": lambda: Counting}).reason
        for _ in range(2)
    ]
    assert Counting.n_loads == 1
    assert reasons == ["named differs from the reference on a case of: added tokens"] * 2


@pytest.mark.parametrize("name", ["digest", "engine_version", "guard", "proof_version", "reference_version"])
def test_verdict_of_something_else_is_not_believed(cache_dir: Path, name: str) -> None:
    """Another file, engine, guard, reference or set of cases needs its own proof, even under the same file name."""
    text, spec, _ = parts_of("split_bpe")
    engine, cache = FastokensEngine(text, spec), ProofCache(cache_dir)
    cache.keep(engine, spec, Verdict(True, 7))
    assert cache.recall(engine, spec) == Verdict(True, 7)
    (path,) = (cache_dir / "proofs").iterdir()
    entry = json.loads(path.read_bytes())
    entry["key"][name] = "another"
    path.write_text(json.dumps(entry))
    assert cache.recall(engine, spec) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"key": {}}', b'{"proven": true}', b"[" * 100_000]
)
def test_corrupt_verdict_is_no_verdict(cache_dir: Path, content: bytes) -> None:
    """Whatever stands in the file: the proof is done again and the file is replaced."""
    data = tokenizer_json("split_bpe")
    load_tokenizer(data, cache_dir=cache_dir)
    (path,) = (cache_dir / "proofs").iterdir()
    path.write_bytes(content)
    assert "proven at this start" in load_tokenizer(data, cache_dir=cache_dir).engine_reason
    assert json.loads(path.read_bytes())["proven"] is True


def test_a_number_of_cases_that_is_none(cache_dir: Path) -> None:
    """A count that no integer can hold is no count."""
    text, spec, _ = parts_of("split_bpe")
    engine, cache = FastokensEngine(text, spec), ProofCache(cache_dir)
    cache.keep(engine, spec, Verdict(True, 7))
    (path,) = (cache_dir / "proofs").iterdir()
    path.write_text(path.read_text().replace('"n_cases": 7', '"n_cases": Infinity'))
    assert cache.recall(engine, spec) is None


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_only_true_is_proven(cache_dir: Path, value: object) -> None:
    """A verdict that is neither true nor false is not believed."""
    text, spec, _ = parts_of("split_bpe")
    engine, cache = FastokensEngine(text, spec), ProofCache(cache_dir)
    cache.keep(engine, spec, Verdict(True, 7))
    (path,) = (cache_dir / "proofs").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "proven": value}))
    assert cache.recall(engine, spec) is None


def test_directory_that_is_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cache that cannot be written costs a proof at each start and a line in the log."""
    (tmp_path / "cache").write_text("in the way")
    for _ in range(2):
        tokenizer = load_tokenizer(tokenizer_json("split_bpe"), cache_dir=tmp_path / "cache")
        assert "proven at this start" in tokenizer.engine_reason
    assert "a proof could not be kept" in caplog.text


def test_directory_without_permission(caplog: pytest.LogCaptureFixture) -> None:
    """The same for a directory in which nobody may write, the superuser neither."""
    assert load_tokenizer(tokenizer_json("split_bpe"), cache_dir=Path("/proc/self/fdinfo")).engine == "fastokens"
    assert "a proof could not be kept" in caplog.text


def test_no_directory_keeps_nothing() -> None:
    """None means: prove at each start."""
    text, spec, _ = parts_of("split_bpe")
    engine, cache = FastokensEngine(text, spec), ProofCache(None)
    cache.keep(engine, spec, Verdict(True, 1))
    assert cache.recall(engine, spec) is None


def test_every_fast_engine_has_an_identity() -> None:
    """A verdict can name what it is about before anything is loaded."""
    for name, engine_class in FAST_ENGINES.items():
        assert engine_class().name == name
        assert engine_class().version
        assert len(engine_class().guard_digest) == 16
