"""The native API is exact: every tokenizer at hand, tricky and real text, every codec, one by one and as a batch."""

from __future__ import annotations

import asyncio
import random
from functools import lru_cache
from typing import Any

import pytest
from tokenizers import Encoding
from tokenizers import Tokenizer as Reference

from dispatcher.engines.fastokens_engine import FastokensEngine
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.tokenizer import Tokenizer
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import read_spec
from tests.data import EMBEDDED, FULL, adversarial, corpus_windows, families, tokenizer_json
from tests.native_client import CODECS, JSON, read_decoded, read_encoded, write_request
from tests.service_fakes import FakeRegistry, Running, run, running
from tests.synthetic import SYNTHETIC

N_ADVERSARIAL = 4000 if FULL else 160
N_WINDOWS = 8 if FULL else 1
PROVEN = (*SYNTHETIC, EMBEDDED)


@lru_cache(maxsize=1)
def loaded(family: str) -> tuple[Tokenizer, Reference]:
    """A tokenizer with its fast engine where there is one, and the judge. The proof at load has tests of its own."""
    data = tokenizer_json(family)
    text, spec = data.decode(), read_spec(data)
    reference = ReferenceEngine(text)
    # Loading is most of the work with large vocabularies; only small ones get a judge that shares nothing.
    judge = Reference.from_str(text) if family in SYNTHETIC else reference.tokenizer
    judge.no_truncation()
    judge.no_padding()
    if family in ("repeating", "overlapping"):
        return Tokenizer(spec, reference, reference, "no engine is exact"), judge
    try:
        return Tokenizer(spec, reference, FastokensEngine(text, spec), "unproven"), judge
    except UnsupportedTokenizer:
        return Tokenizer(spec, reference, reference, "no engine loads it"), judge


@lru_cache(maxsize=1)
def texts() -> list[str]:
    """A sample of the tricky inputs and windows of real text; the same for every family."""
    tricky = [sample.text for sample in adversarial()]
    if len(tricky) > N_ADVERSARIAL:
        tricky = random.Random(2).sample(tricky, N_ADVERSARIAL)
    windows = [w.text for n in (1, 60, 1000, 10_000) for w in corpus_windows(N_WINDOWS, n, seed=n)]
    # A lone surrogate is no text; that it is refused is tested elsewhere.
    return ["", *(text for text in [*tricky, *windows] if text.isascii() or _is_unicode(text))]


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in text)


async def ask(it: Running, path: str, codec: str, content: str, value: Any, **options: Any) -> Any:
    """The fields of an encode answer, or the text of a decode answer."""
    body, query = write_request(codec, content, value, options)
    send = await it.call(path, body, query=query.encode(), content_type=codec)
    assert send.status == 200, send.body
    if content == "ids":
        return read_decoded(codec, send.body, bool(value) and isinstance(value[0], list))
    sections = send.headers.get(b"x-sidetok-sections", b"").decode()
    return read_encoded(codec, send.body, sections, isinstance(value, list), path == "/v1/count")


def served(family: str, test: Any) -> None:
    """Run a test with a service of this family."""
    tokenizer, judge = loaded(family)

    async def main() -> None:
        async with running(FakeRegistry(model=tokenizer)) as it:
            await test(it, judge)

    run(main())


@pytest.mark.parametrize("family", families())
def test_ids_and_texts_are_the_reference_s(family: str) -> None:
    """Encode gives the reference's ids and decode its text, one by one and as a batch, in every codec."""

    async def test(it: Running, judge: Reference) -> None:
        for special in (True, False):
            expected = [e.ids for e in judge.encode_batch_fast(texts(), add_special_tokens=special)]
            for codec in CODECS:
                batch = await ask(it, "/v1/encode", codec, "text", texts(), add_special_tokens=special)
                differing = [t for t, got, want in zip(texts(), batch["ids"], expected, strict=True) if got != want]
                assert differing == []
                assert batch["count"] == [len(ids) for ids in expected]
                counts = await ask(it, "/v1/count", codec, "text", texts(), add_special_tokens=special)
                assert counts == {"count": batch["count"]}
        await one_by_one(it, judge)
        await decoded(it, judge, expected)

    served(family, test)


async def one_by_one(it: Running, judge: Reference) -> None:
    """Single documents, many at once so that workers take them in rounds."""
    expected = [e.ids for e in judge.encode_batch_fast(texts(), add_special_tokens=True)]
    for codec in CODECS:
        answers = await asyncio.gather(*(ask(it, "/v1/encode", codec, "text", text) for text in texts()))
        differing = [t for t, got, want in zip(texts(), answers, expected, strict=True) if got["ids"] != want]
        assert differing == []


async def decoded(it: Running, judge: Reference, sequences: list[list[int]]) -> None:
    """Decode of what encode gave, in one batch and one by one."""
    for skip in (True, False):
        expected = judge.decode_batch(sequences, skip_special_tokens=skip)
        for codec in CODECS:
            assert await ask(it, "/v1/decode", codec, "ids", sequences, skip_special_tokens=skip) == expected
    singles = await asyncio.gather(*(ask(it, "/v1/decode", CODECS[2], "ids", ids) for ids in sequences[:60]))
    assert singles == judge.decode_batch(sequences[:60], skip_special_tokens=True)


@pytest.mark.parametrize("family", families() if FULL else PROVEN)
def test_details_are_the_reference_s(family: str) -> None:
    """Offsets in characters and bytes, token strings, the mask, and truncation on both sides are the reference's."""

    async def test(it: Running, judge: Reference) -> None:
        chosen = [text for text in texts() if len(text) <= 1000][:: 1 if FULL else 3]
        extras = dict.fromkeys(
            ("return_char_offsets", "return_byte_offsets", "return_token_strings", "return_special_tokens_mask"), True
        )
        plain = judge.encode_batch(chosen)
        for codec in CODECS:
            got = await ask(it, "/v1/encode", codec, "text", chosen, **extras)
            for i, (text, encoding) in enumerate(zip(chosen, plain, strict=True)):
                check_details({name: column[i] for name, column in got.items()}, text, encoding)
        for side in ("left", "right"):
            judge.enable_truncation(max_length=7, direction=side)
            cut = judge.encode_batch(chosen)
            judge.no_truncation()
            for codec in CODECS if FULL else (JSON,):
                got = await ask(it, "/v1/encode", codec, "text", chosen, max_tokens=7, truncation_side=side, **extras)
                for i, (text, encoding) in enumerate(zip(chosen, cut, strict=True)):
                    fields = {name: column[i] for name, column in got.items()}
                    assert fields.pop("truncated") == (encoding.ids != plain[i].ids)
                    check_details(fields, text, encoding)

    served(family, test)


def check_details(fields: dict[str, Any], text: str, encoding: Encoding) -> None:
    """One document's answer against the reference's result object."""
    ends = [0]
    for c in text:
        ends.append(ends[-1] + len(c.encode()))
    assert fields == {
        "count": len(encoding.ids),
        "ids": encoding.ids,
        "char_offsets": [list(pair) for pair in encoding.offsets],
        "byte_offsets": [[ends[a], ends[b]] for a, b in encoding.offsets],
        "token_strings": encoding.tokens,
        "special_tokens_mask": encoding.special_tokens_mask,
    }, text
