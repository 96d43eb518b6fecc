"""Promises of dispatcher.tokenizer about its engine: which one is taken, what its faults do, what it leaves."""

from __future__ import annotations

import json
import threading

import pytest
from tokenizers import Encoding

from dispatcher.engines.fastokens_engine import FastokensEngine
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.errors import InvalidText
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import LARGE_CHARS, Tokenizer, load_tokenizer
from gpu_core.errors import TokenizerFileError
from gpu_core.spec import read_spec
from tests.data import tokenizer_json
from tests.dispatcher.test_tokenizer import EVERYTHING, PLAIN, assert_equal, ids_of, reference_of
from tests.fake_engines import FaultyEngine, PanicException
from tests.fakes import LIMIT_S


def faulty_tokenizer(error: BaseException) -> Tokenizer:
    """A tokenizer whose engine raises on documents that contain `!`."""
    data = tokenizer_json("split_bpe")
    spec, reference = read_spec(data), ReferenceEngine(data.decode())
    engine = FaultyEngine()
    engine.error, engine.trigger = error, "!"
    return Tokenizer(spec, reference, engine, "for a test")


@pytest.mark.parametrize("error", [RuntimeError("x"), ValueError("x"), MemoryError(), PanicException("x")])
@pytest.mark.parametrize(
    "options", [PLAIN, EncodeOptions(), EncodeOptions(max_tokens=2), EncodeOptions(count_only=True)]
)
def test_fault_of_an_engine_is_no_fault_of_a_request(error: BaseException, options: EncodeOptions) -> None:
    """The document goes to the reference, others stay with the engine, and the fault is counted."""
    tokenizer = faulty_tokenizer(error)
    fine, broken = tokenizer.encode(["fine", "broken!"], options)
    assert fine.n_tokens == 0
    assert_equal(broken, tokenizer.reference_encode("broken!", options))
    counts = tokenizer.counters()
    assert counts.engine_faults == 1
    assert counts.documents == {"named": 1, "reference": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_interrupts_pass(error: BaseException) -> None:
    """What stops the process is not taken for a fault."""
    with pytest.raises(type(error)):
        faulty_tokenizer(error).encode(["!"], PLAIN)


@pytest.mark.parametrize("engine", ["auto", "gigatoken"])
def test_sparse_ids_are_for_the_reference(engine: str) -> None:
    """No engine may set up a table of four billion ids; the answers are the reference's."""
    model = {"type": "BPE", "vocab": {"a": 4_294_967_290, "b": 1}, "merges": []}
    data = json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()
    tokenizer = load_tokenizer(data, engine=engine, cache_dir=None)
    assert tokenizer.engine == "reference"
    assert tokenizer.engine_reason == "its ids are sparse: they reach 4,294,967,290"
    assert ids_of(tokenizer.encode(["ab"], PLAIN)[0]) == [4_294_967_290, 1]


def test_surrogate_among_many() -> None:
    """One document that is no text refuses the request, and no engine is blamed."""
    tokenizer = load_tokenizer(tokenizer_json("split_bpe"), cache_dir=None)
    with pytest.raises(InvalidText, match=r"at character 2$"):
        tokenizer.encode(["fine", "ab\ud800", "fine"], PLAIN)
    assert tokenizer.counters().engine_faults == 0


def test_counters() -> None:
    """Documents by engine, guarded ones by the reason; the ones with offsets are the reference's."""
    tokenizer = load_tokenizer(tokenizer_json("split_bpe"), cache_dir=None)
    tokenizer.encode(["a", "b\u00e9", "it'\u017f", "x'\u017f"], PLAIN)
    tokenizer.encode(["c"], EVERYTHING)
    counts = tokenizer.counters()
    assert tokenizer.engine == "fastokens"
    assert counts.documents == {"fastokens": 2, "reference": 3}
    assert counts.guarded == {"long_s": 2}
    assert counts.engine_faults == 0
    assert tokenizer.counters() == counts


def test_guarded_documents_are_exact() -> None:
    """The kinds on which the engine is known to differ get the reference's ids."""
    tokenizer = load_tokenizer(tokenizer_json("split_bpe"), cache_dir=None)
    reference = reference_of("split_bpe")
    texts = ["it'\u017f", "'\u017fe's", "a" * 9_000 + "'\u017f"]
    assert [ids_of(d) for d in tokenizer.encode(texts, PLAIN)] == [reference.encode(text).ids for text in texts]


@pytest.mark.parametrize("engine", ["fastokens", "gigatoken", "reference"])
def test_engine_by_name(engine: str) -> None:
    """The engine that was asked for serves if it is proven."""
    tokenizer = load_tokenizer(tokenizer_json("split_bpe"), engine=engine, cache_dir=None)
    assert tokenizer.engine == engine
    assert tokenizer.engine_reason.startswith("asked for" if engine == "reference" else "proven at this start on ")


def test_engine_that_is_not_proven_is_not_used() -> None:
    """An explicit wish is no order to be wrong."""
    tokenizer = load_tokenizer(tokenizer_json("overlapping"), engine="fastokens", cache_dir=None)
    assert tokenizer.engine == "reference"
    assert tokenizer.engine_reason == "fastokens differs from the reference on a case of: added tokens"


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"model": {"vocab": {}, "merges": [["a", "b"]]}}'])
def test_broken_file(data: bytes) -> None:
    """A file that cannot be loaded is the caller's fault, with a reason."""
    with pytest.raises(TokenizerFileError):
        load_tokenizer(data, cache_dir=None)


def test_hot_path_is_the_engine(embedded: Tokenizer) -> None:
    """Requests for ids alone reach the engine that was proven."""
    before = embedded.counters().documents
    embedded.encode(["x"] * 5, PLAIN)
    embedded.encode(["x"], EncodeOptions())
    after = embedded.counters().documents
    assert embedded.engine == FastokensEngine.name
    assert after["fastokens"] - before.get("fastokens", 0) == 6


class HeldJudge(ReferenceEngine):
    """Holds up long documents, and counts how many it has at once."""

    def __init__(self) -> None:
        super().__init__(tokenizer_json("byte_bpe").decode())
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.n_inside = self.n_most = 0

    def encoding(self, document: str, options: EncodeOptions) -> tuple[Encoding, bool]:
        """That of the first letter."""
        if len(document) > LARGE_CHARS:
            self.n_inside += 1
            self.n_most = max(self.n_most, self.n_inside)
            self.entered.release()
            self.go.wait(LIMIT_S)
            self.n_inside -= 1
        return super().encoding(document[:1], options)


def test_large_documents_go_through_the_reference_one_at_a_time() -> None:
    """The reference takes much memory for a long text: several of them wait for each other, other texts do not."""
    judge = HeldJudge()
    tokenizer = Tokenizer(read_spec(tokenizer_json("byte_bpe")), judge, judge, "asked for")
    large = "x" * (LARGE_CHARS + 1)
    threads = [threading.Thread(target=tokenizer.encode, args=([large], EVERYTHING)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert judge.entered.acquire(timeout=LIMIT_S)
    assert tokenizer.encode(["x"], EVERYTHING)[0].n_tokens > 0
    judge.go.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert tokenizer.counters().documents["reference"] == 4
    assert judge.n_most == 1
