"""Tokenizer files of SentencePiece-style BPE: small ones of our own, and the real ones where they are."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from dispatcher.proof_cases import real_text
from gpu_core.character_bpe import BLANK
from tests.data import tokenizer_json

LITERALS = ["<end>", "<b>", "<table>", *("\n" * n for n in range(1, 5)), *(BLANK * n for n in range(2, 6))]


@cache
def sentencepiece(prepends: bool, n_blanks: int = 0) -> bytes:
    """A small file of the kind: rules over several words, runs as added tokens, and ranks out of order.

    With `n_blanks`, the rules of runs of up to so many blanks come first, the longest before the others, as in Gemma.
    """
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(BLANK)] if prepends else []
    replace = normalizers.Replace(" ", BLANK)
    trained = Tokenizer(models.BPE())
    trained.normalizer = replace
    texts = [
        *real_text(),
        "the cat and the dog " * 40,
        "\u4e2d\u6587\u5b57 \u00e9t\u00e9 " * 40,
        "ababab" * 40,
        "===== ----" * 40,
    ]
    trained.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1500, limit_alphabet=120, show_progress=False))
    file = json.loads(trained.to_str())
    model = file["model"]
    for content in ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]:
        model["vocab"][content] = len(model["vocab"])
    # Ranks out of the order of the products, as in Gemma: where ids and ranks disagree, ranks decide.
    random.Random(0).shuffle(model["merges"])
    if n_blanks:
        _put_blanks_first(model, n_blanks)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=model["vocab"],
            merges=[tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([*steps, replace]) if prepends else replace
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous") if not prepends else None
    tokenizer.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(literal, normalized=False) for literal in LITERALS])
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    return tokenizer.to_str().encode()


def _put_blanks_first(model: dict[str, Any], n_blanks: int) -> None:
    """Rules of runs of blanks first, and no others of runs of two or more."""
    runs = [BLANK * n for n in range(1, n_blanks + 1)]
    for run in runs:
        model["vocab"].setdefault(run, len(model["vocab"]))
    others = [
        pair
        for pair in model["merges"]
        if set(pair).isdisjoint(runs[1:]) and "".join(pair).strip(BLANK) and "".join(pair) in model["vocab"]
    ]
    first = [[BLANK * k, BLANK * (n - k)] for n in range(n_blanks, 1, -1) for k in range(n - 1, 0, -1)]
    model["merges"] = first + others


def file_of(family: str) -> bytes:
    """One of ours, or a real one."""
    ours = {"ours": (False,), "ours_prepending": (True,), "ours_blanks": (False, 5)}
    return sentencepiece(*ours[family]) if family in ours else tokenizer_json(family)
