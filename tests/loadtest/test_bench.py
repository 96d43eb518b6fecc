"""The comparison in one process: equality first, then time, on contenders that are right and some that are not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dispatcher.tokenizer import load_tokenizer
from gpu_core.encoder import Encoder
from gpu_core.host_device import HostDevice
from gpu_core.layout import REASON_TOO_LONG
from gpu_core.options import GpuOptions
from gpu_core.spec import read_spec
from loadtest.bench import others, ours, toktier
from loadtest.bench.bench import MAKERS, Wanted, compare
from loadtest.bench.cells import Cell, bytes_per_token, make_cell
from loadtest.bench.cli import main
from loadtest.bench.contender import Batch, Contender, Ids, Maker, Unavailable
from loadtest.bench.copies import in_copy, in_place
from loadtest.bench.plots import PLOTS, draw
from loadtest.bench.report import markdown
from loadtest.bench.timing import Budget, measure, n_different
from loadtest.texts import made_words
from tests.synthetic import SYNTHETIC

FILE = SYNTHETIC["byte_bpe"]()
REFERENCE = Tokenizer.from_str(FILE.decode())
TEXT = made_words(60_000, 1)
BUDGET = Budget(seconds=0.01, max_samples=5)


def cell_of(n_documents: int = 2) -> Cell:
    """Some batches of small documents."""
    cell = make_cell("made", TEXT, 100, n_documents, bytes_per_token(REFERENCE, TEXT))
    assert cell is not None
    return cell


def expected(cell: Cell) -> list[list[Ids]]:
    """The reference's ids."""
    return [
        [np.array(REFERENCE.encode(text, add_special_tokens=False).ids, np.uint32) for text in batch.texts]
        for batch in cell.batches
    ]


def wrong(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
    """A contender that loses the last id of the second document."""

    def ids(answer: Any) -> list[Ids]:
        found = [np.array(encoding.ids, np.uint32) for encoding in answer]
        return [*found[:1], *(row[:-1] for row in found[1:2]), *found[2:]]

    return Contender(
        lambda batch: reference.encode_batch_fast(batch.texts, add_special_tokens=False), ids, "1", remembers=False
    )


def wanted(**makers: Maker) -> Wanted:
    """A small comparison."""
    return Wanted({"small": FILE}, {"made": TEXT}, "made", [50, 200], [1, 2, 4], 50, makers, BUDGET)


def test_batches_do_not_overlap() -> None:
    """Every document is another piece of the corpus, of the size asked for, as text and as its UTF-8."""
    cell = cell_of()
    documents = [document for batch in cell.batches for document in batch.documents]
    assert len(set(documents)) == len(documents) == 40
    places = sorted((TEXT.find(document), len(document)) for document in documents)
    assert all(start >= 0 for start, _ in places)
    assert all(start + n <= following for (start, n), (following, _) in pairwise(places))
    for batch in [*cell.batches, cell.warm_up]:
        assert [text.encode() for text in batch.texts] == batch.documents
    tokens = [len(ids) for batch in expected(cell) for ids in batch]
    assert np.median(tokens) == pytest.approx(100, rel=0.4)


def test_a_document_larger_than_the_corpus() -> None:
    """There is no cell where not one document fits."""
    assert make_cell("made", TEXT, 1_000_000, 1, 4.0) is None


@pytest.mark.parametrize("name", ["sidetok cpu", "gigatoken", "fastokens", "tokenizers"])
def test_contenders_are_read_right(name: str, tmp_path: Path) -> None:
    """Each contender that is installed here answers one document and several with the reference's ids."""
    contender = MAKERS[name](FILE, REFERENCE, tmp_path)
    for n_documents in (1, 3):
        cell = cell_of(n_documents)
        assert n_different(contender, cell, expected(cell)) == 0


def test_differences_are_counted(tmp_path: Path) -> None:
    """Each document with other ids, and each that is missing, counts."""
    cell = cell_of()
    right = expected(cell)
    assert n_different(wrong(FILE, REFERENCE, tmp_path), cell, right) == len(cell.batches)
    short = Contender(lambda batch: batch, lambda batch: [], "1", remembers=False)
    assert n_different(short, cell, right) == 2 * len(cell.batches)


def test_times(tmp_path: Path) -> None:
    """Every text once as new, then some again."""
    cell = cell_of()
    found = measure(others.tokenizers(FILE, REFERENCE, tmp_path), cell, BUDGET)
    assert found["new_us"]["n"] == len(cell.batches)
    assert 3 <= found["warm_us"]["n"] <= 5
    assert found["warm_us"]["p50"] <= found["warm_us"]["p99"]


def test_a_contender_that_remembers_is_fresh_for_every_cell() -> None:
    """It is checked and timed in copies of a process that has seen no text; one that forgets stays where it is."""

    def maker(remembers: bool) -> Maker:
        def make(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
            n_calls = count()

            def encode(batch: Batch) -> list[Any]:
                texts = batch.texts if next(n_calls) < 3 else []
                return [reference.encode(text, add_special_tokens=False) for text in texts]

            return Contender(encode, others.tokenizers(file, reference, folder).ids, "1", remembers=remembers)

        return make

    three = replace(wanted(keeps=maker(True), shares=maker(False)), max_texts=3, batches=[])
    cells = compare(three, lambda line: None)["families"]["small"]["cells"]
    assert [cell["results"]["keeps"]["exact"] for cell in cells] == [True, True]
    assert [cell["results"]["shares"]["exact"] for cell in cells] == [True, False]


def test_files_of_contenders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a contender keeps in files is there for the next one, and gone after the comparison."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: list[list[str]] = []

    def keeps(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
        found.append([path.name for path in folder.iterdir()])
        (folder / "kept").write_bytes(file)
        return others.tokenizers(file, reference, folder)

    compare(wanted(first=keeps, second=keeps), lambda line: None, place=in_place)
    assert found == [[], ["kept"]]
    assert list(tmp_path.iterdir()) == []


def test_calls_in_a_copy() -> None:
    """What they change is gone, what they return or raise is not; a process that dies makes a contender unavailable."""
    seen: list[int] = []

    def look() -> int:
        seen.append(1)
        return len(seen)

    def refuse() -> int:
        raise Unavailable("not here")

    assert [in_copy(look), in_copy(look), in_place(look), in_copy(look), len(seen)] == [1, 1, 1, 2, 1]
    with pytest.raises(Unavailable, match="not here"):
        in_copy(refuse)
    with pytest.raises(Unavailable, match="ended with status 7"):
        in_copy(lambda: os._exit(7))
    with pytest.raises(Unavailable, match=f"ended with status -{signal.SIGINT:d}"):
        in_copy(lambda: os.kill(os.getpid(), signal.SIGINT))


def test_a_contender_that_is_not_exact_is_not_timed() -> None:
    """It is marked with the number of documents, and has no times."""
    result = compare(wanted(tokenizers=others.tokenizers, wrong=wrong), lambda line: None, place=in_place)
    cells = result["families"]["small"]["cells"]
    assert [(cell["asked_tokens"], cell["n_documents"]) for cell in cells] == [(50, 1), (200, 1), (50, 2), (50, 4)]
    for cell in cells:
        assert cell["results"]["tokenizers"]["exact"]
        if cell["n_documents"] > 1:
            assert cell["results"]["wrong"] == {"exact": False, "n_different": cell["n_batches"]}
        else:
            assert set(cell["results"]["wrong"]) == {"exact", "new_us", "warm_us"}
    text = markdown(result)
    assert "| made | 2 |" in text
    assert "not exact" in text


def test_contenders_that_cannot_run() -> None:
    """What is missing, or refuses the file, is in the result with its reason."""

    def missing(file: bytes, reference: Tokenizer, folder: Path) -> Contender:
        raise Unavailable("it is not installed")

    result = compare(wanted(**{"sidetok cpu": ours.cpu, "missing": missing}), lambda line: None, place=in_place)
    contenders = result["families"]["small"]["contenders"]
    assert contenders["missing"] == {"available": False, "reason": "it is not installed"}
    assert contenders["sidetok cpu"]["available"]
    assert "Not here: missing: it is not installed." in markdown(result)


@pytest.mark.parametrize("maker", [others.gigatoken, others.fastokens])
def test_files_that_others_refuse(maker: Maker, tmp_path: Path) -> None:
    """A library that refuses a file, even by a panic, is unavailable for it."""
    with pytest.raises(Unavailable, match="refuses"):
        maker(b'{"model": {"type": "Nothing"}}', REFERENCE, tmp_path)


@pytest.mark.parametrize("maker", [toktier.cpu, toktier.gpu])
def test_toktier_has_no_fast_path_for_any_file(maker: Maker, tmp_path: Path) -> None:
    """It is not installed, or has no fast path for a file that was made here."""
    with pytest.raises(Unavailable, match=r"not installed|no fast path"):
        maker(FILE, REFERENCE, tmp_path)


def test_patterns() -> None:
    """One split is what tiktoken can do; several, or a prefix space, are not."""
    split = {"type": "Split", "pattern": {"Regex": "a+"}}
    level = {"type": "ByteLevel", "use_regex": False}
    own = {"type": "ByteLevel"}
    assert others.split_pattern({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}) == "a+"
    assert others.split_pattern({"pre_tokenizer": own}) == others.GPT2_PATTERN
    for step in (
        None,
        {"type": "Sequence", "pretokenizers": [split, split]},
        {"type": "Sequence", "pretokenizers": [split, own]},
        {"type": "Digits"},
        {"type": "ByteLevel", "add_prefix_space": True},
    ):
        assert others.split_pattern({"pre_tokenizer": step}) is None


def host_encoder() -> Encoder:
    """The GPU core's encoder over ordinary memory, one context for each size; documents with an `o` need the CPU."""
    spec = read_spec(SYNTHETIC["split_bpe"]())

    def encode(document: bytes) -> list[tuple[int, int]] | int:
        if b"o" in document:
            return REASON_TOO_LONG
        encoding = REFERENCE.encode(document.decode(), add_special_tokens=False)
        return [(token, 0) for token in encoding.ids]

    return Encoder(spec, HostDevice(encode), GpuOptions(size_classes_bytes=(4096, 1 << 16), contexts_per_class=1))


def test_documents_that_the_gpu_leaves_to_the_cpu() -> None:
    """They are part of the call, and in their place in the answer; results of one call are free before the next."""
    contender = ours.with_fallback(host_encoder(), load_tokenizer(FILE, engine="reference", cache_dir=None))
    batch = Batch(["one", "and", "two", ""], [b"one", b"and", b"two", b""])
    cell = Cell("made", 1, 4, [batch] * 3, batch)
    assert n_different(contender, cell, expected(cell)) == 0
    assert measure(contender, cell, BUDGET)["warm_us"]["n"] >= 3


def test_plots(tmp_path: Path) -> None:
    """A plot of latency, CPU and batches for each corpus."""
    result = compare(wanted(tokenizers=others.tokenizers), lambda line: None, place=in_place)
    files = draw(result, tmp_path, "svg")
    assert [path.name for path in files] == [f"small-made-{kind}.svg" for kind in PLOTS]
    assert all(b"<svg" in path.read_bytes() for path in files)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It compares, writes, prints; a result can be shown again."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "made.txt").write_bytes(TEXT)
    (tmp_path / "tokenizer.json").write_bytes(FILE)
    places = [
        "--tokenizer",
        f"small={tmp_path}",
        "--text",
        str(tmp_path / "texts"),
        "--output",
        str(tmp_path / "b.json"),
    ]
    flags = ["--sizes", "50", "--batches", "2", "--document-tokens", "20", "--seconds", "0.01"]
    # In a process of its own: here other tests have started threads of these libraries, which a copy lacks.
    command = [sys.executable, "-m", "loadtest.bench.cli", *places, *flags, "--contenders", "sidetok cpu,fastokens"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "## small" in done.stdout) == (0, True), done.stderr
    assert json.loads((tmp_path / "b.json").read_text())["format"] == "sidetok-bench/1"
    assert main(["--report", str(tmp_path / "b.json"), "--plots", str(tmp_path / "plots")]) == 0
    assert "sidetok cpu (1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sizes", "many"], ["--batches", "0"], ["--contenders", "nobody"], ["--corpora", "nothing"],
        ["--tokenizer", "/no/such/file"], ["--report", "no-such-file.json"], ["--text", "/no/such/folder"],
    ],
)  # fmt: skip
def test_what_cannot_be_understood(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line, and status 2."""
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("sidetok-bench: ")


def test_what_is_done_is_kept() -> None:
    """Every contender hands out the result so far, and loading is said before: a run that is cut leaves it."""
    lines: list[str] = []
    kept: list[set[str]] = []

    def keep(result: dict[str, Any]) -> None:
        cells = json.loads(json.dumps(result))["families"]["small"]["cells"]
        kept.append({name for cell in cells for name in cell["results"]})

    two = replace(wanted(tokenizers=others.tokenizers, wrong=wrong), max_texts=3)
    result = compare(two, lines.append, keep, in_place)
    assert kept == [{"tokenizers"}, {"tokenizers", "wrong"}]
    assert lines[:2] == ["small: the reference's ids", "small: loading tokenizers"]
    assert {cell["n_batches"] for cell in result["families"]["small"]["cells"]} == {3}
