"""The reference's pre-tokenizer of each pattern family that the device serves, built without any tokenizer file."""

from __future__ import annotations

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Sequence, Split

_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def pre_tokenizer(family: str) -> PreTokenizer:
    """The reference for a key of `gpu_core.tables.FAMILIES`."""
    if family == "gpt2":
        return ByteLevel(add_prefix_space=False, use_regex=True)
    regexes = _DEEPSEEK if family == "deepseek_v3" else (_CL100K % ("{1,3}" if family == "cl100k" else ""),)
    splits = [Split(Regex(regex), "isolated") for regex in regexes]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


def reference_starts(reference: PreTokenizer, text: str) -> set[int]:
    """Byte positions at which the reference's pre-tokens begin."""
    if text.isascii():
        return {start for _piece, (start, end) in reference.pre_tokenize_str(text) if start != end}
    widths = [len(char.encode()) for char in text]
    position = [sum(widths[:i]) for i in range(len(widths) + 1)]
    return {position[start] for _piece, (start, end) in reference.pre_tokenize_str(text) if start != end}
