"""`sidetok tokenize-files`: the reference's ids, in files that appear whole and are named in a manifest."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from service.files.command import parse, tokenize_files
from tests.data import EMBEDDED, adversarial
from tests.fakes import LIMIT_S
from tests.service.files_rig import PLAIN, Workplace, digests, json_lines

TEXTS = [sample.text for sample in adversarial()[:200]]
ROOT = Path(__file__).resolve().parents[2]
SHORT = [f"document {i}, " + "ab" * (i % 7) for i in range(5000)]
"""Five groups of records."""


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    """A small tokenizer that adds special tokens, and no documents."""
    return Workplace(tmp_path)


def parquet(texts: list[Any], type_: Any = None, rows: int = 100, column: str = "text") -> bytes:
    """A Parquet file with a column before the texts."""
    table = pyarrow.table({"n": list(range(len(texts))), column: pyarrow.array(texts, type_ or pyarrow.string())})
    file = io.BytesIO()
    pyarrow.parquet.write_table(table, file, row_group_size=rows)
    return file.getvalue()


def test_ids_are_the_references_in_every_format(place: Workplace) -> None:
    """Text, JSON lines and Parquet, compressed or not, in the order of the paths; ids fit into 16 bits here."""
    lines = json_lines(TEXTS)
    place.write("a.jsonl", lines)
    place.write("b/a.jsonl.zst", zstandard.compress(lines[:500]) + zstandard.compress(lines[500:]))
    place.write("b/b.ndjson.gz", gzip.compress(lines))
    place.write("c.parquet", parquet(TEXTS))
    place.write("d.pq", parquet(TEXTS, pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), rows=7))
    place.write("e.txt", "one document\nof two lines\r\n")
    place.write("f.md.zst", zstandard.compress("another 😀".encode()))
    assert place.run() == 0
    manifest = place.manifest()
    texts = [*TEXTS * 5, "one document\nof two lines\r\n", "another 😀"]
    assert place.documents() == place.expected(texts)
    assert (manifest["id_type"], manifest["n_left_out"], manifest["n_documents"]) == ("uint16", 0, len(texts))
    assert manifest["n_tokens"] == sum(map(len, place.expected(texts)))
    assert place.output.joinpath("shard-00000-00000.bin").stat().st_size == 2 * manifest["n_tokens"]


def test_the_embedded_tokenizer_and_its_proven_engine(tmp_path: Path) -> None:
    """Without --tokenizer the embedded model encodes, on the engine that a service would take, to 32 bits."""
    place = Workplace(tmp_path, EMBEDDED)
    place.write("a.jsonl", json_lines(TEXTS))
    assert tokenize_files([str(place.input), str(place.output), "--gpus", "none"], {"HOME": str(tmp_path)}) == 0
    assert place.documents() == place.expected(TEXTS)
    assert place.manifest()["id_type"] == "uint32"


def test_special_tokens_and_an_end_after_each_document(place: Workplace) -> None:
    """Special tokens can be left away, and a token can be put after each document, by its text or from the model."""
    place.write("a.jsonl", json_lines(TEXTS))
    plain = place.expected(TEXTS, special_tokens=False)
    end = place.expected(["</s>"], special_tokens=False)[0]
    assert place.run("--no-special-tokens", output=place.folder / "plain") == 0
    assert place.documents(place.folder / "plain") == plain
    assert place.run("--no-special-tokens", "--eos", "</s>", output=place.folder / "eos") == 0
    assert place.documents(place.folder / "eos") == [ids + end for ids in plain]
    (place.folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert place.run("--no-special-tokens", "--eos", "auto", output=place.folder / "auto") == 0
    assert digests(place.folder / "auto") == digests(place.folder / "eos")


def test_lines_of_text_files_as_documents(place: Workplace) -> None:
    """With --text-unit line each line that is not blank is a document, without its end."""
    place.write("a.txt", "first\r\n\n  \n second \nlast")
    assert place.run("--text-unit", "line") == 0
    assert place.documents() == place.expected(["first", " second ", "last"])


def test_parquet_output(place: Workplace) -> None:
    """With --output-format parquet there is a row for each document."""
    place.write("a.jsonl", json_lines(TEXTS))
    assert place.run("--output-format", "parquet") == 0
    (shard,) = place.manifest()["shards"]
    (file,) = shard["files"]
    table = pyarrow.parquet.read_table(place.output / file["name"])
    assert table["ids"].to_pylist() == place.expected(TEXTS)
    assert table.schema.field("ids").type.value_type == pyarrow.uint16()


def test_what_cannot_be_read_is_counted_and_named(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """Each bad file and record is in the manifest with its place and reason, the others are encoded; status 3."""
    good = json_lines(["good"])
    lines = [b"{", b"[1]", b'{"other": 1}', b'{"text": null}', b'{"text": "\\ud800"}', b'{"text": "\xff"}']
    lines.append(b'{"text": "' + b"x" * 2000 + b'"}')
    place.write("a.jsonl", good + b"\n".join(lines) + b"\n\n" + good)
    place.write("b.jsonl.zst", zstandard.compress(good) + zstandard.compress(good * 9)[:-9])
    place.write("c.jsonl.gz", gzip.compress(good)[:-9])
    place.write("d.parquet", b"PAR1 and no more")
    place.write("e.parquet", parquet(["x", None, "y" * 3000], rows=1))
    place.write("f.parquet", parquet([1], pyarrow.int64()))
    place.write("g.parquet", parquet(["x"], column="other"))
    place.write("h.parquet", parquet([b"\xff"], pyarrow.binary()))
    place.write("i.txt", b"abc\xff")
    place.write("j.bin", b"")
    place.write("k.jsonl.zst", b"no frame")
    place.write(".hidden.txt", "hidden")
    assert place.run("--max-document-bytes", "1000") == 3
    manifest = place.manifest()
    assert place.documents() == place.expected(["good"] * 3 + ["x"])
    found = [(failure["source"], failure["record"]) for failure in manifest["left_out"]]
    assert found[:7] == [("a.jsonl", n) for n in range(2, 9)]
    assert found[7:11] == [("b.jsonl.zst", 2), ("c.jsonl.gz", 1), ("d.parquet", 1), ("e.parquet", 2)]
    assert found[11:14] == [("e.parquet", 3), ("f.parquet", 1), ("g.parquet", 1)]
    assert found[14:] == [("h.parquet", 1), ("i.txt", 1), ("k.jsonl.zst", 1)]
    assert all(failure["reason"] for failure in manifest["left_out"])
    assert manifest["not_read"] == ["j.bin"]
    said = capsys.readouterr().err
    assert f"{len(manifest['left_out'])} left out" in said
    assert "not read: 1 files" in said
    assert "x" * 50 not in said


def test_too_many_failures_stop_the_run(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """More than --max-errors end the run with status 1; with a higher bound the same command goes on."""
    place.write("a.jsonl", b"{\n" * 5)
    assert place.run("--max-errors", "4") == 1
    assert "--max-errors" in capsys.readouterr().err
    assert not (place.output / "manifest.json").exists()
    assert place.run("--max-errors", "5") == 3


def test_a_document_that_the_engine_refuses_is_left_out_alone(tmp_path: Path) -> None:
    """The others of its group are encoded."""
    place = Workplace(tmp_path, "unigram")
    place.write("a.jsonl", json_lines(["before", "x" * (1 << 20) + "x", "after"]))
    assert place.run("--max-reference-bytes", "1MiB") == 3
    assert place.documents() == place.expected(["before", "after"])
    (failure,) = place.manifest()["left_out"]
    assert (failure["source"], failure["record"]) == ("a.jsonl", 2)


def test_a_killed_run_is_gone_on_with(place: Workplace) -> None:
    """After SIGKILL the same command makes what is missing: all files as without the kill, what was there untouched."""
    place.write("a.jsonl", json_lines(SHORT))
    place.write("b.jsonl.zst", zstandard.compress(json_lines(SHORT)))
    place.write("c.parquet", parquet(SHORT, rows=700))
    options = ("--shard-tokens", "1", "--unit-bytes", "1")
    whole = place.folder / "whole"
    assert place.run(*options, output=whole) == 0
    assert place.documents(whole) == place.expected(SHORT * 3)
    main = "import sys; from service.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", main, "tokenize-files", *place.arguments(*options)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE) as process:
        until_s = time.monotonic() + LIMIT_S
        begun = place.output / "shard-00000-00001.json"
        while not begun.exists():
            assert process.poll() is None or begun.exists()
            assert time.monotonic() < until_s
        process.send_signal(signal.SIGKILL)
    before = {path.name: path.stat().st_mtime_ns for path in place.output.glob("shard-*.json")}
    assert place.run(*options) == 0
    assert digests(place.output) == digests(whole)
    after = {path.name: path.stat().st_mtime_ns for path in place.output.glob("shard-*.json")}
    assert before.items() <= after.items()


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no record"])
def test_damaged_shards_are_made_again(place: Workplace, damage: str) -> None:
    """A shard that is not what its record says is replaced, with those after it in its group."""
    place.write("a.jsonl", json_lines(SHORT))
    assert place.run("--shard-tokens", "1") == 0
    expected = digests(place.output)
    path = place.output / "shard-00000-00002.bin"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-2])
    elif damage == "changed":
        path.write_bytes(b"\x01\x02" + path.read_bytes()[2:])
    elif damage == "gone":
        path.unlink()
    else:
        path.with_suffix(".json").write_bytes(b"{")
    (place.output / "shard-00000-00003.bin.partial").write_bytes(b"left behind")
    assert place.run("--shard-tokens", "1") == 0
    assert digests(place.output) == expected


def test_another_run_is_not_mixed_in(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """Other documents, options or tokenizers are refused in a directory of an earlier run, unless it may be removed."""
    place.write("a.jsonl", json_lines(["one"]))
    assert place.run() == 0
    assert place.run("--no-special-tokens") == 1
    assert "another options" in capsys.readouterr().err
    place.write("b.jsonl", json_lines(["two"]))
    assert place.run() == 1
    assert "another sources" in capsys.readouterr().err
    assert place.run("--overwrite") == 0
    assert place.documents() == place.expected(["one", "two"])


def test_two_runs_at_once_are_refused(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """One run at a time works in a directory."""
    place.write("a.jsonl", json_lines(["one"]))
    place.output.mkdir()
    with (place.output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert place.run() == 1
    assert "another run is at work" in capsys.readouterr().err
    assert place.run() == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--eos", "<nothing>"], "no token '<nothing>'"),
        (["--eos", "auto"], "names no eos_token"),
        (["--tokenizer", "/no/such/file"], "no such file"),
        (["--input-format", "parquet", "--field", "\n"], ""),
    ],
)
def test_wrong_values_end_in_one_line(
    place: Workplace, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be honoured is said in a line."""
    place.write("a.jsonl", json_lines(["one"]))
    assert place.run(*more) in (1, 3)
    assert said in capsys.readouterr().err


def test_ids_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A vocabulary beyond 65,536 is never written to 16 bits."""
    place = Workplace(tmp_path, EMBEDDED)
    place.write("a.jsonl", json_lines(["one"]))
    assert place.run("--id-type", "uint16") == 1
    assert "go up to 12" in capsys.readouterr().err


def test_input_that_is_not_there(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing or empty input, and an output inside the input, are said."""
    assert place.run() == 1
    assert "no file to read" in capsys.readouterr().err
    assert tokenize_files([str(place.folder / "nothing"), str(place.output), *PLAIN], {}) == 1
    assert "no such file or directory" in capsys.readouterr().err
    place.write("a.jsonl", json_lines(["one"]))
    assert place.run(output=place.input / "out") == 1
    assert "inside the input" in capsys.readouterr().err


def test_one_file_as_input(place: Workplace) -> None:
    """The input may be a file; a document without ids is there, with none."""
    place.write("a.jsonl", json_lines(["", "one"]))
    arguments = [str(place.input / "a.jsonl"), *place.arguments("--no-special-tokens")[1:]]
    assert tokenize_files(arguments, {}) == 0
    assert place.documents() == place.expected(["", "one"], special_tokens=False)
    assert place.documents()[0] == []


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags win over variables; a wrong one is one line and status 2."""
    arguments = parse(["in", "out", "--unit-bytes", "1MiB"], {"SIDETOK_UNIT_BYTES": "2MiB", "SIDETOK_FIELD": "body"})
    assert (arguments.files.unit_bytes, arguments.files.field) == (1 << 20, "body")
    with pytest.raises(SystemExit) as end:
        parse(["in", "out", "--unit-bytes", "0"], {})
    assert end.value.code == 2
    assert capsys.readouterr().err == "sidetok tokenize-files: --unit-bytes: '0' is below 1\n"


def test_files_in_groups_that_end_at_a_size(place: Workplace) -> None:
    """Small files share a shard up to --unit-bytes; each shard holds the documents of whole files."""
    for i in range(10):
        place.write(f"{i}.txt", f"text {i}")
    assert place.run("--unit-bytes", "25") == 0
    manifest = place.manifest()
    assert [shard["n_documents"] for shard in manifest["shards"]] == [4, 4, 2]
    assert place.documents() == place.expected([f"text {i}" for i in range(10)])
    assert np.memmap(place.output / "shard-00002-00000.idx", np.uint64, "r")[0] == 0
