"""Inputs that bring out the worst in a tokenizer, whatever their ids."""

from __future__ import annotations

import numpy as np

LITERALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<s>", "</s>", "<bos>", "<eos>",
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<start_of_turn>",
    "<|fim_prefix|>",
)  # fmt: skip
"""Added tokens of well-known models; in a model without them they are text."""
INVALID = "invalid UTF-8"


def hostile_texts(n_bytes: int, seed: int) -> dict[str, bytes]:
    """Texts of about `n_bytes` each, by what is bad about them. All but `INVALID` are UTF-8."""
    rng = np.random.default_rng((seed, 0xBAD))
    return {
        "one letter": b"a" * n_bytes,
        "random letters": rng.integers(97, 123, n_bytes, dtype=np.uint8).tobytes(),
        "newline and blank": b"\n " * (n_bytes // 2),
        "digits": rng.integers(48, 58, n_bytes, dtype=np.uint8).tobytes(),
        "combining marks": b"x\xcc\xb8" * (n_bytes // 3),
        "decomposed letters": "e\u0301o\u0308".encode() * (n_bytes // 6),
        "added tokens": _repeated("".join(LITERALS).encode(), n_bytes),
        "almost added tokens": _repeated("".join(literal[:-1] for literal in LITERALS).encode(), n_bytes),
        "han without a space": "漢字仮名交文章".encode() * (n_bytes // 21),
        "emoji sequences": "👨‍👩‍👧‍👦".encode() * (n_bytes // 25),
        "zeros": bytes(n_bytes),
        INVALID: b"text " * (n_bytes // 10) + b"\xff\xfe" + b" text" * (n_bytes // 10),
    }


def _repeated(unit: bytes, n_bytes: int) -> bytes:
    return unit * max(1, n_bytes // len(unit))
