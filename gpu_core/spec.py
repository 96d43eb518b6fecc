"""What a tokenizer.json says, read once into a small value that every room can use. No native library is involved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gpu_core.errors import TokenizerFileError
from gpu_core.pattern import pattern_family


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One entry of `added_tokens`: a literal that is found in the text before the model sees it."""

    id: int
    """The id once loaded: a literal outside the vocabulary is numbered after it, whatever its entry says."""
    content: str
    special: bool
    normalized: bool
    """Whether it is searched for in the normalized text instead of the raw text."""
    single_word: bool
    lstrip: bool
    rstrip: bool


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """The facts of one tokenizer file that decide who can serve it, and how."""

    digest: str
    """SHA-256 of the file, hexadecimal."""
    model_type: str
    """BPE, Unigram, WordPiece or WordLevel; inferred from the fields when the file names none."""
    normalizers: tuple[str, ...]
    """Kinds of the normalizers in order, nested sequences flattened; empty = text stays as it is."""
    pre_tokenizers: tuple[str, ...]
    pattern_family: str
    """See `gpu_core.pattern`."""
    post_processors: tuple[str, ...]
    decoders: tuple[str, ...]
    byte_level: bool
    """Whether a symbol stands for one byte (ByteLevel), not for a character."""
    vocab_size: int
    """Entries of the model's vocabulary, added tokens outside it not counted."""
    n_merges: int
    max_id: int
    """The largest id that can be in a result; -1 when there is none."""
    max_model_id: int
    """The largest id of the model's vocabulary; -1 when it is empty. An added token's may be larger."""
    ignore_merges: bool
    byte_fallback: bool
    fuse_unk: bool
    unk_token: str | None
    dropout: float
    """Chance to skip a merge; above 0 the ids are random and no engine can be exact."""
    continuing_subword_prefix: str
    end_of_word_suffix: str
    added_tokens: tuple[AddedToken, ...]
    sets_truncation: bool
    """The file carries truncation settings. They are switched off: a request says itself what it wants cut."""
    sets_padding: bool
    """The file carries padding settings. They are switched off."""

    @property
    def normalizer(self) -> str:
        """The normalizers as one readable phrase."""
        return " + ".join(self.normalizers) or "none"


def read_spec(data: bytes) -> TokenizerSpec:
    """Read the bytes of a tokenizer.json. Raises `TokenizerFileError` with the reason."""
    file = _parse(data)
    model = _member(file, "model", dict, "the file")
    model_type = _model_type(model)
    vocab = _vocabulary(model, model_type)
    n_merges = _check_merges(model, vocab) if model_type == "BPE" else 0
    pre_tokenizers = components(file.get("pre_tokenizer"), "pretokenizers")
    normalizers = components(file.get("normalizer"), "normalizers")
    byte_level = any(step.get("type") == "ByteLevel" for step in chain(pre_tokenizers, normalizers))
    added_tokens = _added_tokens(file.get("added_tokens") or [], vocab)
    return TokenizerSpec(
        digest=hashlib.sha256(data).hexdigest(),
        model_type=model_type,
        normalizers=_kinds(normalizers),
        pre_tokenizers=_kinds(pre_tokenizers),
        pattern_family=pattern_family(pre_tokenizers, byte_level) if model_type == "BPE" else "other",
        post_processors=_kinds(components(file.get("post_processor"), "processors")),
        decoders=_kinds(components(file.get("decoder"), "decoders")),
        byte_level=byte_level,
        vocab_size=len(vocab),
        n_merges=n_merges,
        max_id=max(chain(vocab.values(), (token.id for token in added_tokens)), default=-1),
        max_model_id=max(vocab.values(), default=-1),
        ignore_merges=bool(model.get("ignore_merges")),
        byte_fallback=bool(model.get("byte_fallback")),
        fuse_unk=bool(model.get("fuse_unk")),
        unk_token=model.get("unk_token"),
        dropout=float(model.get("dropout") or 0.0),
        continuing_subword_prefix=model.get("continuing_subword_prefix") or "",
        end_of_word_suffix=model.get("end_of_word_suffix") or "",
        added_tokens=added_tokens,
        sets_truncation=file.get("truncation") is not None,
        sets_padding=file.get("padding") is not None,
    )


def _parse(data: bytes) -> dict[str, Any]:
    try:
        file = json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise TokenizerFileError(f"not a tokenizer.json: invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        if not data.strip():
            raise TokenizerFileError("not a tokenizer.json: the file is empty") from None
        cut_off = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        kind = "the file is cut off: JSON ends" if cut_off else "not a tokenizer.json: invalid JSON"
        raise TokenizerFileError(f"{kind} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise TokenizerFileError("not a tokenizer.json: JSON nested too deeply") from None
    if not isinstance(file, dict):
        raise TokenizerFileError("not a tokenizer.json: the outermost JSON value is not an object")
    return file


def _member(owner: dict[str, Any], name: str, kind: type, where: str) -> Any:
    value = owner.get(name)
    if not isinstance(value, kind):
        state = "is missing" if value is None else "has the wrong type"
        raise TokenizerFileError(f"not a tokenizer.json: {name!r} of {where} {state}")
    return value


def _model_type(model: dict[str, Any]) -> str:
    """The named type, or the first of those that the fields fit, in the order in which the reference tries them."""
    named = model.get("type")
    if named in {"BPE", "Unigram", "WordPiece", "WordLevel"}:
        return str(named)
    if named is not None:
        raise TokenizerFileError("the model's type is none of BPE, Unigram, WordPiece, WordLevel")
    fields = model.keys()
    if {"vocab", "merges"} <= fields:
        return "BPE"
    if {"vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"} <= fields:
        return "WordPiece"
    if {"vocab", "unk_token"} <= fields:
        return "WordLevel"
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    raise TokenizerFileError("the model has no type, and its fields fit none of BPE, Unigram, WordPiece, WordLevel")


def _vocabulary(model: dict[str, Any], model_type: str) -> dict[str, int]:
    if model_type == "Unigram":
        entries = _member(model, "vocab", list, "the model")
        try:
            return {content: i for i, (content, _score) in enumerate(entries)}
        except (TypeError, ValueError):
            raise TokenizerFileError("an entry of the model's vocabulary is not a pair of text and score") from None
    vocab: dict[str, int] = _member(model, "vocab", dict, "the model")
    if not all(type(i) is int and 0 <= i < 1 << 32 for i in vocab.values()):
        raise TokenizerFileError("an id of the model's vocabulary is not an integer from 0 to 4294967295")
    return vocab


def _check_merges(model: dict[str, Any], vocab: dict[str, int]) -> int:
    """The number of merges, once each is known to join two entries into a third."""
    merges = _member(model, "merges", list, "the model")
    skip = len(model.get("continuing_subword_prefix") or "")
    if _are_known(merges, vocab, skip):
        return len(merges)
    for n, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        # Old files carry a version comment where the first merge would be.
        if isinstance(merge, str) and merge.startswith("#version"):
            continue
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise TokenizerFileError(f"merge {n} of the model is not a pair of tokens")
        left, right = pair
        if left not in vocab or right not in vocab or left + right[skip:] not in vocab:
            raise TokenizerFileError(f"merge {n} of the model joins or makes a token that the vocabulary lacks")
    return len(merges)


def _are_known(merges: list[Any], vocab: dict[str, int], skip: int) -> bool:
    """Whether all merges are well-formed, without saying which one is not: several times as fast."""
    if not set(map(type, merges)) <= {str, list}:
        return False
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    try:
        makes_known = all(left + right[skip:] in vocab for left, right in pairs)
        return makes_known and all(map(vocab.__contains__, chain.from_iterable(pairs)))
    except (TypeError, ValueError):
        return False


def components(step: Any, members: str) -> list[dict[str, Any]]:
    """A component and everything nested in its sequences, in order."""
    if not isinstance(step, dict):
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [leaf for child in step.get(members) or [] for leaf in components(child, members)]


def _kinds(steps: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(str(step.get("type")) for step in steps)


def _added_tokens(entries: list[dict[str, Any]], vocab: dict[str, int]) -> tuple[AddedToken, ...]:
    """The added tokens with the ids that the reference gives them, ordered by id; a repeated literal counts once."""
    tokens: dict[str, AddedToken] = {}
    next_id = len(vocab)
    for n, entry in enumerate(entries):
        try:
            content = entry["content"]
            flags = {name: bool(entry[name]) for name in ("special", "normalized", "single_word", "lstrip", "rstrip")}
        except (KeyError, TypeError):
            raise TokenizerFileError(f"added token {n} lacks its content or one of its flags") from None
        if not content:
            continue
        known = tokens[content].id if content in tokens else vocab.get(content)
        token_id = next_id if known is None else known
        next_id = max(next_id, token_id + 1)
        tokens[content] = AddedToken(id=token_id, content=content, **flags)
    return tuple(sorted(tokens.values(), key=lambda token: token.id))
