"""Pattern families, recognised by what the split regexes say and never by a model's name.

A family stands for one exact set of split rules, so that a kernel written for it is exact for every file of the family.
A regex is cut into its top-level branches, each branch is looked up by its text, and the sequence of branch names
decides. One unknown branch makes the family `other`; so does a possessive quantifier, which can change what matches.
"""

from __future__ import annotations

from typing import Any

BRANCHES: dict[str, str] = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)": "contraction",
    "'(?i:[sdmt]|ll|ve|re)": "contraction",
    r"[^\r\n\p{L}\p{N}]?\p{L}+": "word",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+": "word_marks",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+": "word_after_blank",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""": "ascii_tail",
    r"\p{N}{1,3}": "digits_3",
    r"\p{N}": "digits_1",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*": "punctuation",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*": "punctuation_slash",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*": "punctuation_no_marks",
    r" ?[\p{P}\p{S}]+[\r\n]*": "punctuation_ps",
    r"\s*[\r\n]+": "newlines",
    r"\s+(?!\S)": "blanks_but_last",
    r"\s+": "blanks",
    r"[\p{Han}]+": "han",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+": "cjk",
    "'s": "'s",
    "'t": "'t",
    "'re": "'re",
    "'ve": "'ve",
    "'m": "'m",
    "'ll": "'ll",
    "'d": "'d",
    r" ?\p{L}+": "letters",
    r" ?\p{N}+": "numbers",
    r" ?[^\s\p{L}\p{N}]+": "others",
}
"""Every branch that a family is made of, as it is usually written."""


def _cased_words() -> dict[str, str]:
    """The two branches for words that split between lower and upper case, in each variant."""
    branches = {}
    for but, but_name in (("", ""), (r"&&[^\p{Han}]", "_not_han")):
        upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
        for tail, tail_name in (("", ""), ("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "_contraction")):
            branches[rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{tail}"] = f"lower_word{but_name}{tail_name}"
            branches[rf"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{tail}"] = f"upper_word{but_name}{tail_name}"
    return branches


BRANCHES |= _cased_words()

_TAIL = "newlines blanks_but_last blanks"
_GPT2 = "'s 't 're 've 'm 'll 'd letters numbers others blanks_but_last blanks"
FAMILIES: dict[tuple[str, ...], str] = {
    (_GPT2,): "gpt2",
    ("digits_each", _GPT2): "digits_gpt2",
    (f"contraction word digits_3 punctuation {_TAIL}",): "cl100k",
    (f"contraction word digits_1 punctuation {_TAIL}",): "qwen2",
    (f"contraction word_marks digits_1 punctuation_no_marks {_TAIL}",): "qwen3_5",
    (f"lower_word_contraction upper_word_contraction digits_3 punctuation_slash {_TAIL}",): "o200k",
    (f"lower_word upper_word digits_1 punctuation_slash {_TAIL}",): "tekken",
    (f"han lower_word_not_han_contraction upper_word_not_han_contraction digits_3 punctuation {_TAIL}",): "kimi_k2",
    ("digits_3", "cjk", f"ascii_tail word_after_blank punctuation_ps {_TAIL}"): "deepseek_v3",
}
"""The branches of each split in turn -> the family."""


def pattern_family(pre_tokenizers: list[dict[str, Any]], byte_level: bool) -> str:
    """The family of a flattened list of pre-tokenizers: a key of `FAMILIES`, `sentencepiece`, or `other`.

    `sentencepiece` means that the text between added tokens is one word for the model: no pre-tokenizer at all, or one
    that splits at a space, which the normalizer has replaced before.
    """
    if not byte_level:
        return "sentencepiece" if all(_splits_at_space_only(step) for step in pre_tokenizers) else "other"
    splits: list[str] = []
    for step in pre_tokenizers:
        name = _split_of(step)
        if name is None:
            return "other"
        if name:
            splits.append(name)
    return FAMILIES.get(tuple(splits), "other")


def branches_of(regex: str) -> list[str]:
    """A regex cut at the `|` that stand outside every group and class."""
    branches, start, depth, in_class, i = [], 0, 0, 0, 0
    while i < len(regex):
        char = regex[i]
        if char == "\\":
            i += 1
        elif char == "[":
            in_class += 1
        elif char == "]" and in_class:
            in_class -= 1
        elif not in_class:
            depth += {"(": 1, ")": -1}.get(char, 0)
            if char == "|" and depth == 0:
                branches.append(regex[start:i])
                start = i + 1
        i += 1
    return [*branches, regex[start:]]


def _spelling(branch: str) -> str:
    """The branch with CR and LF escaped; files have them either way."""
    return branch.replace("\r", r"\r").replace("\n", r"\n")


_NAMES = {_spelling(text): name for text, name in BRANCHES.items()}


def _split_of(step: dict[str, Any]) -> str | None:
    """The branch names of one pre-tokenizer, "" when it splits nothing, None when it is unknown."""
    match step.get("type"):
        case "ByteLevel":
            if step.get("add_prefix_space"):
                return None
            return _GPT2 if step.get("use_regex", True) else ""
        case "Digits":
            return "digits_each" if step.get("individual_digits") else None
        case "Split":
            return _regex_split(step)
    return None


def _regex_split(step: dict[str, Any]) -> str | None:
    # The patterns match every character, so "remove what does not match" removes nothing.
    as_usual = (step.get("behavior"), bool(step.get("invert"))) in {("Isolated", False), ("Removed", True)}
    regex = step.get("pattern", {}).get("Regex")
    if not as_usual or regex is None:
        return None
    names = [_NAMES.get(_spelling(branch)) for branch in branches_of(regex)]
    return None if None in names else " ".join(name for name in names if name)


def _splits_at_space_only(step: dict[str, Any]) -> bool:
    return step.get("type") == "Split" and step.get("pattern") == {"String": " "}
