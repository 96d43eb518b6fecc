"""Runs the checks of a device over the stand-in: python -m tests.gpu_core.stand_in.run"""

from __future__ import annotations

import json
import mmap
import random
import sys
from itertools import accumulate

import cupy
import numpy as np

from gpu_core.arena import arrange
from gpu_core.device import CudaGpu
from gpu_core.encoder import load
from gpu_core.layout import FLAG_IDS, REASON_NOT_NORMAL, REASONS
from gpu_core.options import GpuOptions
from tests.data import EMBEDDED, families, tokenizer_json
from tests.gpu_core.bridge_files import sentencepiece
from tests.gpu_core.decode_checks import wrong_texts
from tests.gpu_core.device_checks import Checker
from tests.gpu_core.device_data import Reference, plain_literals, window
from tests.gpu_core.normal_checks import AMOUNTS, SecondReplays, expected_ids, normal_batches
from tests.gpu_core.normal_rules import Rules

PAGE = mmap.PAGESIZE
NFC_FAMILY = "qwen3" if "qwen3" in families() else "split_bpe"
TEXT = ("It's 12345 o'clock, d\u00e9j\u00e0 vu; \u4f60\u597d\u4e16\u754c\u3002\n\n  x = foo(bar)  \t" * 40).encode()
BATCHES = [
    [b""],
    [window(TEXT, 0, 60)],
    [TEXT],
    [window(TEXT, 0, 58 * k) for k in range(40)],
    [TEXT + b" " + TEXT],
    [b"=" + b"\n" * 600, b"x" * 600, b"fine"],
    [b"words and " + b"abc" * 900 + b" more", b"x", b"=" * 700, "\u4e2d\u6587".encode() * 300],
    [b"ab" * 2000],
    [],
]


def check_given_memory(checker: Checker, options: GpuOptions) -> list[str]:
    """What is wrong with two contexts over memory of the caller, both launched before one is read."""
    size = checker.encoder.ladder.classes[0]
    n_bytes = -(-arrange(size.capacity, size.max_documents, options.token_starts).pinned.n_bytes // PAGE) * PAGE
    memory = memoryview(mmap.mmap(-1, 2 * n_bytes))
    gpu = CudaGpu(options.device)
    gpu.register(memory)
    blocks = memory[:n_bytes], memory[n_bytes:]
    contexts = [checker.encoder.device.context(size, block) for block in blocks]
    batches = BATCHES[1], [window(TEXT, 0, 2000), window(TEXT, 100, 300)]
    for context, batch in zip(contexts, batches, strict=True):
        context.text[: sum(map(len, batch))] = b"".join(batch)
        context.document_starts[: len(batch) + 1] = [0, *accumulate(map(len, batch))]
        context.launch(sum(map(len, batch)), len(batch), FLAG_IDS, False)
    wrong = []
    for context, block, batch in zip(contexts, blocks, batches, strict=True):
        expected = checker.encoder.encode(batch)
        ids = context.ids[: context.n_tokens()]
        if not context.poll(1) or ids.tobytes() != b"".join(expected.ids(i).tobytes() for i in range(len(batch))):
            wrong.append(f"{len(batch)} documents in given memory")
        if not np.shares_memory(ids, np.frombuffer(block, np.uint8)):
            wrong.append("ids do not lie in the given memory")
    del context, contexts
    gpu.unregister(memory)
    return wrong


def check_characters() -> Checker:
    """BPE over characters; documents beyond the largest size class are cut."""
    data = sentencepiece(False)
    checker = Checker("characters", data, GpuOptions(size_classes_bytes=(4096,), token_starts=True))
    text = TEXT + ("\n" * 9 + "\u2581").encode() * 90
    batches = [[text[:3000]], [text], [window(text, 0, 40 * k) for k in range(40)]]
    for batch, ids in zip(batches, Reference(data).ids_of_batches(batches), strict=True):
        checker.check("texts", batch, ids)
    checker.check_other_ways(batches[0])
    checker.check_transfers(batches[0])
    checker.check_decimals(batches[0])
    return checker


def check_normal_forms() -> SecondReplays:
    """Text that is not in normal form, of an NFC tokenizer."""
    data = tokenizer_json(NFC_FAMILY)
    checker = Checker(NFC_FAMILY, data, GpuOptions(size_classes_bytes=(4096, 16384)))
    literals = plain_literals(checker.encoder.spec)
    text = (
        TEXT.decode() + "Cafe\u0301, \u1112\u1161\u11ab\uae00 \u1ea4n \u0958 \u00c5ngstro\u0308m \u212b"
    ).encode() * 3
    work = normal_batches(random.Random(2), [text], literals, AMOUNTS["least"])
    replays = SecondReplays(checker.encoder)
    for (name, batch), ids in zip(work, expected_ids(Reference(data), work), strict=True):
        replays.check(name, batch, ids)
        replays.check_at_once(name, batch, ids)
    for _name, batch in work[:4]:
        checker.check_decimals(batch)
    replays.wrong += checker.wrong
    options = GpuOptions(size_classes_bytes=(16384,), contexts_per_class=1, token_starts=True, wait="block")
    rules = Rules(load(data, options))
    rules.check()
    replays.wrong += rules.wrong
    return replays


def check_without_memory() -> list[str]:
    """What is wrong where there is no memory for second replays: documents stay flagged, and nobody asks again."""
    data, asked = tokenizer_json(NFC_FAMILY), 0
    encoder = load(data, GpuOptions(size_classes_bytes=(4096,), contexts_per_class=1))
    memory, text = cupy.cuda.Memory, "Cafe\u0301".encode()

    def no_memory(n_bytes: int) -> None:
        nonlocal asked
        asked += 1
        raise cupy.cuda.memory.OutOfMemoryError

    cupy.cuda.Memory = no_memory
    left = [encoder.encode_packed(text + b"plain", [0, len(text), len(text) + 5]).needs_cpu for _ in range(3)]
    cupy.cuda.Memory = memory
    if left != 3 * [{0: REASONS[REASON_NOT_NORMAL]}] or asked != 1:
        return [f"without memory for second replays: {left}, asked {asked} times"]
    return []


def main() -> int:
    """Prints what was checked; status 1 when something was wrong."""
    data = tokenizer_json(EMBEDDED)
    expected = Reference(data).ids_of_batches(BATCHES)
    found: dict[str, object] = {}
    wrong: list[str] = []
    for options in ({}, {"eager": True}, {"wait": "block"}, {"wait": "spin"}):
        sizes = (4096, 65536)
        gpu_options = GpuOptions(size_classes_bytes=sizes, token_starts=True, **options)
        checker = Checker("embedded", data, gpu_options)
        for batch, ids in zip(BATCHES, expected, strict=True):
            checker.check("texts", batch, ids)
        for batch in BATCHES[:5] if not options else BATCHES[2:4]:
            checker.check_other_ways(batch)
            checker.check_transfers(batch)
            checker.check_packed(batch)
            checker.check_decimals(batch)
        for batch in BATCHES[5:8]:
            checker.check_other_ways(batch)
        found[str(options)] = [dict(checker.n_checked), dict(checker.needs_cpu), checker.description["device"]]
        wrong += checker.wrong + check_given_memory(checker, gpu_options)
    characters = check_characters()
    wrong += characters.wrong
    found["characters"] = [dict(characters.n_checked), dict(characters.needs_cpu)]
    replays = check_normal_forms()
    wrong += replays.wrong + check_without_memory()
    found["second replays"] = [dict(replays.n_checked), dict(replays.left)]
    n_decoded, wrong_decoded = wrong_texts(data, checker.encoder.device, Reference(data), expected, random.Random(1))
    wrong += wrong_decoded
    found["decode"] = n_decoded
    print(json.dumps({"found": found, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
