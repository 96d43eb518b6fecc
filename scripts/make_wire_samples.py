#!/usr/bin/env python3
"""Write tests/service/wire_samples.json: what a vLLM render server was asked and answered, and a cut of its tokenizer.

Needs the shared data. The cut has the entries and merges that can occur in the texts of these samples, with the ids of
the whole tokenizer, so that it gives the recorded ids for them.
Usage: python -m scripts.make_wire_samples
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from tests.data import SHARED, tokenizer_json
from tests.service.wire_samples import FILE, MODEL


def main() -> None:
    """Read every sample, cut the tokenizer, write both."""
    paths = sorted(path for path in (SHARED / "wire-samples").glob("[!_]*.json") if path.stem != "openapi")
    samples = {path.stem: facts(json.loads(path.read_bytes())) for path in paths}
    data = json.loads(tokenizer_json(MODEL))
    FILE.write_text(
        json.dumps({"samples": samples, "tokenizer": cut(data, samples)}, ensure_ascii=True, indent=0) + "\n"
    )


def facts(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample without what is in it twice, and without what is different each time."""
    request, response = sample["request"], sample["response"]
    names = ("method", "path", "content_type", "raw_body_latin1" if request["raw_body_latin1"] is not None else "json")
    return {
        "request": {name: request[name] for name in names},
        "status": response["status"],
        "body": response["raw_body"],
    }


def cut(data: dict[str, Any], samples: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer with what the words of the samples can be made of."""
    whole = Tokenizer.from_str(json.dumps(data))
    ids = sorted({i for sample in samples.values() for i in ids_in(sample)})
    known = [i for i in ids if i < whole.get_vocab_size()]
    texts = [text for sample in samples.values() for text in texts_in(sample, whole)]
    texts += [whole.decode([i]) for i in known]
    split = whole.pre_tokenizer.pre_tokenize_str
    normal = whole.normalizer.normalize_str
    added = "|".join(re.escape(token["content"]) for token in data["added_tokens"])
    words = {word for text in texts for part in re.split(added, text) for word, _ in split(normal(part))}
    model, names = data["model"], {i: name for name, i in data["model"]["vocab"].items()}
    merges = [merge for merge in model["merges"] if any("".join(merge) in word for word in words)]
    kept = {*pre_tokenizers.ByteLevel.alphabet(), *(part for merge in merges for part in (*merge, "".join(merge)))}
    kept |= {names[i] for i in known if i in names}
    vocab = {name: i for name, i in model["vocab"].items() if name in kept}
    # An added token that the vocabulary lacks would get an id behind the last one.
    vocab |= {token["content"]: token["id"] for token in data["added_tokens"]}
    return {**data, "model": {**model, "vocab": vocab, "merges": merges}}


def ids_in(value: Any) -> Iterator[int]:
    """Every list of ids in a sample."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "body" and inner[:1] in ("{", "["):
                yield from ids_in(json.loads(inner))
            elif name in {"token_ids", "tokens"} and isinstance(inner, list):
                yield from (i for i in inner if isinstance(i, int) and 0 <= i < 1 << 32)
            else:
                yield from ids_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from ids_in(inner)


def texts_in(sample: dict[str, Any], whole: Tokenizer) -> Iterator[str]:
    """The text of a sample: of each prompt, and of each list of ids."""
    prompt = sample["request"].get("json") or {}
    if isinstance(prompt, dict) and isinstance(prompt.get("prompt"), str):
        yield prompt["prompt"].encode(errors="replace").decode()
    yield whole.decode([i for i in ids_in(sample) if i < whole.get_vocab_size()], skip_special_tokens=False)


if __name__ == "__main__":
    main()
