"""The record of the last verification on a device."""

from pathlib import Path

from gpu_core.record import Record, is_current, read_record, source_digest, write_record

RECORD = Record("0" * 64, "2026-01-01", {"device": "a device"}, {"corpora/gpt2": 7}, {"memcheck": "0 errors"}, [])


def test_committed_record_is_about_these_sources() -> None:
    """The kernels are those that were last verified on a device; after a change, run scripts/verify-gpu on one."""
    record = read_record()
    assert record is not None
    assert is_current(record)
    assert all(count > 0 for count in record.checks.values())


def test_round_trip(tmp_path: Path) -> None:
    """A record is read as it was written, and no file means no record."""
    path = tmp_path / "record.json"
    assert read_record(path) is None
    write_record(RECORD, path)
    assert read_record(path) == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def write(folder: Path, name: str, text: str) -> str:
    """Write a source and say the digest of all."""
    (folder / name).write_text(text)
    return source_digest(folder)


def test_digest_sees_code_and_no_comments(tmp_path: Path) -> None:
    """Code, file names and directives count; comments and the layout of a line do not."""
    first = write(tmp_path, "a.cu", "int f() { return 1; }  // one\n")
    assert write(tmp_path, "a.cu", "/* a\nb */ int  f() {  return 1; }\n") == first
    assert write(tmp_path, "a.cu", "int f() { return 2; }\n") != first
    assert write(tmp_path, "a.cu", "int f() { return 1; }\n") == first
    assert write(tmp_path, "b.cuh", "\n") != first
    assert is_current(Record(source_digest(tmp_path), "", {}, {}), tmp_path)


def test_digest_of_the_kernels() -> None:
    """The kernels have a digest, and an invented record is not about them."""
    assert len(source_digest()) == 64
    assert not is_current(RECORD)
