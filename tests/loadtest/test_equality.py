"""The judge of ids: which reference, and what it finds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from dispatcher.embedded import embedded_tokenizer_json
from loadtest.api import make_api
from loadtest.equality import check, find_judge, other_server
from loadtest.errors import BadOption
from loadtest.observed import Observed
from loadtest.plan import BATCH, PlanBuilder
from loadtest.pool import Pool, write_pool
from loadtest.target import parse_target
from tests.loadtest.fake_server import Reply, faking, http
from tests.loadtest.results import observed_of
from tests.synthetic import SYNTHETIC

TEXT = "One text, two texts; naïve 漢字. ".encode() * 50


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer file."""
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    path.write_bytes(SYNTHETIC["byte_bpe"]())
    return path


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    """A pool of one text."""
    return write_pool(tmp_path, {"a": TEXT}, 100)


def digest(data: bytes) -> str:
    """As servers give it."""
    return hashlib.sha256(data).hexdigest()


def answered(pool: Pool, reference: Tokenizer) -> Observed:
    """Right answers to a document and to a batch of two."""
    start, length = pool.windows("a", np.arange(3), np.full(3, 60), 1)
    builder = PlanBuilder()
    builder.add("one", np.array([0]), start[:1], length[:1])
    builder.add("batch", np.array([1]), start[1:], length[1:], counts=np.array([2]), kind=BATCH)
    observed = observed_of(builder.build(), [1, 1], [200, 200])
    texts = [str(pool.text(int(s), int(n)), "utf-8") for s, n in zip(start, length, strict=True)]
    ids = [np.array(reference.encode(text).ids, np.uint32) for text in texts]
    observed.ids.update({0: ids[:1], 1: ids[1:]})
    return observed


def test_right_ids(file: Path, pool: Pool) -> None:
    """Ids of the reference, special tokens included, are equal."""
    judge = find_judge(str(file), None, True)
    assert judge.ask is not None
    found = check(answered(pool, Tokenizer.from_file(str(file))), pool, judge)
    assert (found["n_equal"], found["n_different"], found["groups_not_checked"]) == (2, 0, [])
    assert found["n_tokens"] > 0


def test_wrong_ids(file: Path, pool: Pool) -> None:
    """One id too many, another id, a document too few, an answer that cannot be read: all are wrong."""
    judge = find_judge(str(file.parent), None, True)
    assert judge.ask is not None
    observed = answered(pool, Tokenizer.from_file(str(file)))
    observed.ids[0][0] = np.append(observed.ids[0][0], 1).astype(np.uint32)
    observed.ids[1].pop()
    observed.unreadable.append(1)
    found = check(observed, pool, judge)
    assert (found["n_equal"], found["n_different"], found["n_unreadable"]) == (0, 3, 1)
    assert found["different"] == {"one": 1, "batch": 1}


def test_groups_without_a_check_are_named(file: Path, pool: Pool) -> None:
    """A group of which no answer was compared does not pass silently."""
    judge = find_judge(str(file), None, True)
    assert judge.ask is not None
    observed = answered(pool, Tokenizer.from_file(str(file)))
    del observed.ids[0]
    assert check(observed, pool, judge)["groups_not_checked"] == ["one"]


def test_the_embedded_model_is_its_own_judge() -> None:
    """A server that serves the embedded tokenizer, by its digest, is judged without any file."""
    judge = find_judge("", digest(embedded_tokenizer_json()), True)
    assert judge.ask is not None
    assert judge.reason == "the embedded tokenizer"


@pytest.mark.parametrize(("served", "of_text"), [(None, True), ("0" * 64, True), (None, False)])
def test_no_judge(served: str | None, of_text: bool, pool: Pool) -> None:
    """Without a reference the check is off, and says so."""
    judge = find_judge("", served, of_text)
    assert judge.ask is None
    observed = observed_of(PlanBuilder().build(), [], [])
    assert check(observed, pool, judge) == {"checked": False, "reference": judge.reason}
    assert judge.reason.startswith("off: ")


def test_files_that_are_no_judge(file: Path, tmp_path: Path) -> None:
    """A file that cannot be loaded, or is not the one that is served, is refused."""
    assert find_judge(str(file), digest(file.read_bytes()), True).ask is not None
    with pytest.raises(BadOption, match="digests differ"):
        find_judge(str(file), "0" * 64, True)
    (tmp_path / "bad.json").write_text("{}")
    for name in ("bad.json", "missing.json"):
        with pytest.raises(BadOption, match=r"cannot be (loaded|read)"):
            find_judge(str(tmp_path / name), None, True)


def test_a_judge_needs_no_text_of_wrong_requests(pool: Pool, file: Path) -> None:
    """A group that must be refused has no ids to check."""
    builder = PlanBuilder()
    builder.add("bad", np.array([0]), np.array([0]), np.array([10]), refused=True)
    judge = find_judge(str(file), None, True)
    assert check(observed_of(builder.build(), [1], [400]), pool, judge)["groups_not_checked"] == []


def test_another_server_as_judge(file: Path, pool: Pool) -> None:
    """A second server is asked the same; what it does not answer is neither right nor wrong."""
    observed = answered(pool, Tokenizer.from_file(str(file)))
    (single,), batch = observed.ids[0], observed.ids[1]
    counts = np.array([len(ids) for ids in batch], "<u4")
    packed = counts.tobytes() + b"".join(ids.tobytes() for ids in batch)
    sections = f"X-Sidetok-Sections: counts=8,ids={len(packed) - 8}"

    def script(number: int, body: bytes) -> Reply:
        if body[:4] == (2).to_bytes(4, "little"):
            return http(200, packed, sections)
        return http(503, b"") if number == 0 else http(200, single.tobytes())

    with faking(script) as server:
        judge = other_server(parse_target(f"http://127.0.0.1:{server.port}"), make_api("native", "octet-stream", ""))
        first, second = (check(observed, pool, judge) for _ in range(2))
    gone = check(observed, pool, judge)
    assert (first["n_equal"], first["n_different"], first["n_unjudged"]) == (1, 0, 1)
    assert (second["n_equal"], second["n_different"], second["n_unjudged"]) == (2, 0, 0)
    assert (gone["n_equal"], gone["n_different"], gone["n_unjudged"]) == (0, 0, 2)
