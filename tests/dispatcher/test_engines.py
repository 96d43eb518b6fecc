"""Promises of dispatcher.engines: every engine that serves gives the reference's ids, and its faults stay its own."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.resources import files

import numpy as np
import pytest

from dispatcher.engines import CpuEngine
from dispatcher.engines.choice import FAST_ENGINES, EngineClass, choose_engine
from dispatcher.engines.code_points import SHORT, CodePoints
from dispatcher.engines.fastokens_engine import FastokensEngine
from dispatcher.engines.gigatoken_engine import BATCH_CHARS, BATCH_DOCUMENTS, GigatokenEngine, guarded_code_points
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.proof import ProofCache
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer
from gpu_core.errors import TokenizerFileError, UnsupportedTokenizer
from gpu_core.spec import TokenizerSpec, read_spec
from tests.data import EMBEDDED, FULL, adversarial, corpus_windows, families, tokenizer_json, unique_words
from tests.fake_engines import FaultyEngine, PanickingLoad, RefusingLoad, WrongEngine
from tests.synthetic import SYNTHETIC

IDS_ONLY = EncodeOptions(add_special_tokens=False)
GUARD_SHA256 = "c7a9243a3d5edf2a85fa09db3e942a4377af5f980c4d674eee595c29627f9cfa"
NOT_FAST = {"character_bpe", "unigram", "word_piece", "word_level", "overlapping", "repeating"}
"""Families that no fast engine loads, or that it does not serve exactly."""
NO_GIGATOKEN = {
    "byte_bpe": "single_word",
    "gpt_neox_20b": "normalized added tokens",
    "starcoder": "no single-byte vocab entry",
    "synthetic_kimi_k2": "no fast pretokenizer",
}


def parts_of(family: str) -> tuple[str, TokenizerSpec, ReferenceEngine]:
    """The text, the spec and the reference of one family."""
    data = tokenizer_json(family)
    text = data.decode()
    return text, read_spec(data), ReferenceEngine(text)


def texts() -> list[str]:
    """Adversarial inputs, and windows of every corpus."""
    n = 20 if FULL else 1
    windows = corpus_windows(8 * n, 700) + corpus_windows(2 * n, 12_000) + corpus_windows(n, 60_000)
    return [sample.text for sample in (*adversarial(), *windows)]


@pytest.mark.parametrize("family", families())
def test_every_engine_gives_the_reference_ids(family: str) -> None:
    """Whatever engine is asked for, and `auto`: the ids are the reference's on every text, guarded ones included."""
    text, spec, reference = parts_of(family)
    documents = texts()
    expected = [reference.encode(document) for document in documents]
    cache = ProofCache(None)
    for wanted in ("auto", "gigatoken"):
        choice = choose_engine(wanted, text, spec, reference, cache)
        tokenizer = Tokenizer(spec, reference, choice.engine, choice.reason)
        results = [tokenizer.encode([document], IDS_ONLY)[0] for document in documents]
        assert tokenizer.encode(documents[-40:], IDS_ONLY) == results[-40:]
        wrong = [i for i, (result, ids) in enumerate(zip(results, expected, strict=True)) if result.ids != ids]
        assert wrong == [], (wanted, choice, [documents[i][:80] for i in wrong[:3]])
        assert tokenizer.counters().engine_faults == 0
        if family in NOT_FAST:
            assert choice.engine is reference
        elif wanted == "auto":
            assert choice.engine.name == "fastokens", choice.reason
        elif family in NO_GIGATOKEN:
            assert choice.engine is reference
            assert NO_GIGATOKEN[family] in choice.reason
        else:
            assert choice.engine.name == "gigatoken", choice.reason


@pytest.mark.parametrize("engine_class", [FastokensEngine, GigatokenEngine])
@pytest.mark.parametrize("n_chars", [0, 1, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097, 600_000])
def test_lengths(engine_class: EngineClass, n_chars: int) -> None:
    """Documents of any length, the empty one and one that is over the library's own parallel limit included."""
    text, spec, reference = parts_of("split_bpe")
    engine = engine_class(text, spec)
    document = ("It's \u00e9t\u00e9, 12345 \u6f22\u5b57!\n\n" * (n_chars // 20 + 1))[:n_chars]
    assert engine.encode(document) == reference.encode(document)


@pytest.mark.parametrize("name", ["fastokens", "gigatoken", "reference"])
def test_many_documents_at_once(name: str) -> None:
    """Documents that are given together get the ids that each of them gets alone, empty ones included."""
    engine = load(name, "split_bpe")
    documents = ["", "a", "\u00e9" * 65, "", *(sample.text for sample in corpus_windows(3, 500, seed=2)), ""]
    assert engine.encode_many(documents) == [engine.encode(document) for document in documents]
    assert engine.encode_many([]) == []


@pytest.mark.parametrize("family", ["split_bpe", *{"llama2"}.intersection(families())])
@pytest.mark.parametrize("engine_class", [FastokensEngine, GigatokenEngine])
def test_very_many_documents_at_once(engine_class: EngineClass, family: str) -> None:
    """More than one native call takes, only empty ones among them, a long one among short ones."""
    text, spec, reference = parts_of(family)
    engine = engine_class(text, spec)
    rng = random.Random(9)
    prose = "".join(sample.text for sample in corpus_windows(4, 3_000, seed=11))
    documents = [prose[(at := rng.randrange(len(prose))) : at + rng.randrange(40)] for _ in range(3 * BATCH_DOCUMENTS)]
    documents[BATCH_DOCUMENTS : 2 * BATCH_DOCUMENTS] = [""] * BATCH_DOCUMENTS
    documents[-7] = prose[: 2 * BATCH_CHARS]
    if engine_class is GigatokenEngine:
        documents = ["" if engine.guard(document) else document for document in documents]
    for given in (documents, documents[:-8], documents[: BATCH_DOCUMENTS + 1]):
        assert engine.encode_many(given) == reference.encode_many(given)


@pytest.mark.parametrize("engine_class", [FastokensEngine, GigatokenEngine])
def test_threads_share_an_engine(engine_class: EngineClass) -> None:
    """One instance answers many threads at once, each with its own ids."""
    text, spec, reference = parts_of("split_bpe")
    engine = engine_class(text, spec)
    documents = [sample.text for sample in corpus_windows(4, 3_000, seed=7)]
    expected = [reference.encode(document) for document in documents]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(i for i, document in enumerate(documents) if engine.encode(document) != expected[i])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


CLOCK_SCRIPT = """
import sys, time
from tests.data import unique_words
from tests.dispatcher.test_engines import load
engine = load(sys.argv[1], "split_bpe")
document = unique_words(400_000, seed=3)
engine.encode("warm up")
thread_ns, process_ns = time.thread_time_ns(), time.process_time_ns()
engine.encode(document)
print((time.thread_time_ns() - thread_ns) / (time.process_time_ns() - process_ns))
"""


@pytest.mark.parametrize("name", ["fastokens", "gigatoken", "reference"])
def test_work_is_on_the_calling_thread(name: str) -> None:
    """The calling thread's CPU clock sees the work of an encode: no hidden threads (within a tenth)."""
    # In a process of its own, which has no threads but those of the engine.
    command = [sys.executable, "-c", CLOCK_SCRIPT, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.9


@pytest.mark.parametrize("name", ["fastokens", "gigatoken", "reference"])
def test_gil_is_released(name: str) -> None:
    """Python code of other threads runs while an engine encodes."""
    engine = load(name, "split_bpe")
    # A busy host may give the other thread no CPU in that time: it gets another chance.
    assert any(n_looks_during_encode(engine, seed) >= 3 for seed in range(4, 14))


def n_looks_during_encode(engine: CpuEngine, seed: int) -> int:
    """How often a thread that looks at the clock did so in the first half of an encode."""
    document = unique_words(2_000_000, seed)
    stamps_ns: list[int] = []
    started, stop = threading.Event(), threading.Event()

    def watch() -> None:
        started.set()
        while not stop.is_set():
            stamps_ns.append(time.monotonic_ns())
            stop.wait(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    started.wait()
    start_ns = time.monotonic_ns()
    engine.encode(document)
    end_ns = time.monotonic_ns()
    stop.set()
    thread.join()
    # The reference makes a list of its ids with the GIL held; what counts is that the encode itself does not.
    return sum(start_ns < ns < start_ns + (end_ns - start_ns) // 2 for ns in stamps_ns)


def load(name: str, family: str) -> CpuEngine:
    """One engine with one tokenizer."""
    text, spec, reference = parts_of(family)
    return reference if name == "reference" else FAST_ENGINES[name]()(text, spec)


MEMORY_SCRIPT = """
import sys
from dispatcher.engines.memory import resident_bytes
from tests.data import unique_words
from tests.dispatcher.test_engines import load
engine = load(sys.argv[1], sys.argv[2])
engine.encode(unique_words(1_000_000, seed=99))
before = resident_bytes()
for seed in range(int(sys.argv[3])):
    engine.encode(unique_words(1_000_000, seed=seed))
print(resident_bytes() - before)
"""


@pytest.mark.parametrize(
    ("name", "n_million_chars", "max_growth_mib"),
    [("fastokens", 20, 150), ("reference", 20 if FULL else 4, 100), ("gigatoken", 120 if FULL else 30, 600)],
)
def test_memory_is_bounded(name: str, n_million_chars: int, max_growth_mib: int) -> None:
    """Text that was never seen before does not make the process grow without end."""
    arguments = [sys.executable, "-c", MEMORY_SCRIPT, name, EMBEDDED, str(n_million_chars)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) / 2**20 < max_growth_mib


RELEASE_SCRIPT = """
import threading
from dispatcher.engines.memory import release_free_memory, resident_bytes
kept = []
def work():
    pieces = [bytearray(2_000) for _ in range(100_000)]
    kept.append(pieces[-1])
thread = threading.Thread(target=work)
thread.start()
thread.join()
before = resident_bytes()
release_free_memory()
print(before - resident_bytes())
"""


def test_free_memory_is_released() -> None:
    """What a thread freed below something that is still in use goes back to the system."""
    done = subprocess.run([sys.executable, "-c", RELEASE_SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100_000_000


def test_gigatoken_is_rebuilt_while_it_serves() -> None:
    """After a bounded amount of input on a process that grew, a fresh instance takes over; answers do not change."""
    text, spec, reference = parts_of("split_bpe")
    engine = GigatokenEngine(text, spec, look_after_chars=10_000, max_growth_bytes=-(1 << 62))
    for seed in range(4):
        document = unique_words(6_000, seed)
        assert engine.encode(document) == reference.encode(document)
        engine.settle()
    assert engine.n_rebuilds == 2


def test_guard_table_is_the_committed_one() -> None:
    """The table changes only together with this digest: whoever runs the script again looks at what changed."""
    data = files("dispatcher").joinpath("data", "gigatoken_guard.txt").read_bytes()
    assert hashlib.sha256(data).hexdigest() == GUARD_SHA256
    assert data.decode("ascii").startswith("# Written by scripts/make_guard_table.py: gigatoken ")


@pytest.mark.parametrize("character", ["\u0cdc", "\u08d3", "\U000323b1", "\U00010940", "\u1ad0"])
def test_gigatoken_guard(character: str) -> None:
    """Code points of newer Unicode versions are seen in short and in long texts."""
    text, spec, _ = parts_of("split_bpe")
    engine = GigatokenEngine(text, spec)
    for n in (0, SHORT - 1, SHORT, 10 * SHORT):
        assert engine.guard("\u00e9" * n + character) == "unicode_version"
        assert engine.guard(character + "\u00e9" * n) == "unicode_version"
        assert engine.guard("\u00e9" * n) is None


@pytest.mark.parametrize(
    ("family", "document"),
    [(EMBEDDED, " \U000323b1"), ("split_bpe", "a\u08d3\u0301"), ("split_bpe", "\U0001611e" * 2)],
)
def test_guarded_code_points_matter(family: str, document: str) -> None:
    """Without its guard gigatoken differs: it has newer classes, marks and compositions."""
    text, spec, reference = parts_of(family)
    assert GigatokenEngine(text, spec).encode(document) != reference.encode(document)


@pytest.mark.parametrize("document", ["o'\u017f", "'\u017fe", "x'\u017f's"])
def test_fastokens_guard(document: str) -> None:
    """The long s after an apostrophe is guarded, and nothing else is."""
    text, spec, reference = parts_of("split_bpe")
    engine = FastokensEngine(text, spec)
    assert engine.guard(document) == "long_s"
    assert engine.guard(document.replace("'\u017f", "'s\u017f")) is None
    assert engine.encode("it'\u017fe") != reference.encode("it'\u017fe")


def test_code_points() -> None:
    """Both ends of a range are members, their neighbours are not."""
    members = CodePoints([(0x100, 0x1FF), (0x1F600, 0x1F600)])
    assert members.n_code_points == 257
    for n in (0, 2 * SHORT):
        padding = "\u00e9" * n
        for c in (0x100, 0x1FF, 0x1F600):
            assert members.in_text(padding + chr(c))
        for c in (0xFF, 0x200, 0x1F5FF, 0x1F601):
            assert not members.in_text(padding + chr(c))
    assert guarded_code_points().n_code_points > 4_000


def test_holes_in_the_vocabulary_are_filled() -> None:
    """fastokens refuses a vocabulary with unused ids; entries that no text can produce make it load, ids unchanged."""
    file = json.loads(tokenizer_json("split_bpe"))
    vocab = file["model"]["vocab"]
    vocab[max(vocab, key=lambda entry: vocab[entry])] += 7
    data = json.dumps(file).encode()
    spec, reference = read_spec(data), ReferenceEngine(data.decode())
    engine = FastokensEngine(data.decode(), spec)
    for sample in adversarial():
        if sample.text.isascii() or engine.guard(sample.text) is None:
            assert engine.encode(sample.text) == reference.encode(sample.text)


FAMILY = "split_bpe"


def choose(wanted: str, engines: Mapping[str, Callable[[], EngineClass]]) -> tuple[str, str]:
    """The name of the engine and the reason."""
    text, spec, reference = parts_of(FAMILY)
    choice = choose_engine(wanted, text, spec, reference, ProofCache(None), engines)
    return choice.engine.name, choice.reason


def test_choice_in_order() -> None:
    """`auto` takes the first that is proven, and says why not the ones before."""
    engines: dict[str, Callable[[], EngineClass]] = {
        "refusing": lambda: RefusingLoad,
        "wrong": lambda: WrongEngine,
        **FAST_ENGINES,
    }
    name, reason = choose("auto", engines)
    assert name == "fastokens"
    assert "proven at this start on" in reason
    assert "refusing does not load it: because of a test" in reason
    assert "wrong differs from the reference on a case of: real text" in reason


@pytest.mark.parametrize(
    ("engine_class", "expected"),
    [
        (RefusingLoad, "named does not load it: because of a test"),
        (PanickingLoad, "named does not load it: a panic of a test"),
        (WrongEngine, "named differs from the reference on a case of: real text"),
        (FaultyEngine, "named fails on a case of: real text (RuntimeError)"),
    ],
)
def test_choice_by_name_is_no_order_to_be_wrong(engine_class: EngineClass, expected: str) -> None:
    """An engine that was asked for but fails is not used; the reason says so, and nothing is raised."""
    assert choose("named", {"named": lambda: engine_class}) == ("reference", expected)


def test_missing_library() -> None:
    """A library that cannot be imported is a reason, not an error."""

    def missing() -> EngineClass:
        raise ImportError("no such library here")

    name, reason = choose("auto", {"missing": missing, **FAST_ENGINES})
    assert name == "fastokens"
    assert "missing does not load it: no such library here" in reason


def test_random_merges_are_left_to_the_reference() -> None:
    """With BPE dropout the ids are random; no comparison means anything."""
    data = tokenizer_json(FAMILY).replace(b'"dropout":null', b'"dropout":0.5')
    spec, reference = read_spec(data), ReferenceEngine(data.decode())
    choice = choose_engine("auto", data.decode(), spec, reference, ProofCache(None))
    assert (choice.engine.name, choice.reason) == ("reference", "the model has BPE dropout, so its ids are random")


@pytest.mark.parametrize(
    "data",
    [
        tokenizer_json("byte_bpe").replace(b'"normalizer":null', b'"normalizer":{"type":"Magic"}'),
        tokenizer_json("byte_bpe").replace(b'"version":"1.0"', b'"version":"9.0"'),
        b"{}",
    ],
)
def test_reference_refuses_with_a_short_reason(data: bytes) -> None:
    """The library's own words come first; a file's contents do not."""
    with pytest.raises(TokenizerFileError, match="the reference library refuses the file: ") as caught:
        ReferenceEngine(data.decode())
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("family", [name for name in SYNTHETIC if name in NOT_FAST - {"overlapping", "repeating"}])
def test_unsupported_kinds_are_refused_at_load(family: str) -> None:
    """A fast engine that cannot do a kind of model says so at load."""
    text, spec, _ = parts_of(family)
    for engine_class in (FastokensEngine, GigatokenEngine):
        with pytest.raises(UnsupportedTokenizer):
            engine_class(text, spec)


def test_ids_are_little_endian_uint32() -> None:
    """The packing that codecs send as it is."""
    text, spec, reference = parts_of("split_bpe")
    ids = reference.tokenizer.encode("Hello, world!", add_special_tokens=False).ids
    for engine in (reference, FastokensEngine(text, spec), GigatokenEngine(text, spec)):
        assert np.frombuffer(engine.encode("Hello, world!"), "<u4").tolist() == ids
