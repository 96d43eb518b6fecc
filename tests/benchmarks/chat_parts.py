"""CPU time of a chat render by part, in process on one thread: what both routes take, then what each has of its own.

    python -m tests.benchmarks.chat_parts MODEL_FOLDER TEXT_FILE [--requests 60] [--gpu]

The folder has a tokenizer.json and a chat template; texts are cut from the file and sent once each, as JSON. Prints
medians in microseconds for 1 KiB in one message, 16 KiB in 4 and 480 KB in 60. *UTF-8* is what the GPU route takes in
the place of *encode*; it writes answers from ids that the device listed, which is not timed here. With `--gpu` bodies
are read as where there is one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from dispatcher.late_texts import LateTexts
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeRequest
from service.dialects.utf8_body import has_utf8
from service.dialects.vllm_chat import render, render_utf8
from service.dialects.vllm_render import ChatRender, conversation_of
from service.endpoint import Head
from service.options import ServiceOptions
from service.registry import Registry

SHAPES = ((1024, 1), (16_384, 4), (480_000, 60))
"""Bytes of text, and the messages that they are cut into."""
HEAD = Head("/v1/chat/completions/render", b"", [], "bench", b"application/json")
PARTS = ("parse", "template", "parameters", "UTF-8", "encode", "write")


class Parts:
    """CPU time of each part, request by request."""

    def __init__(self) -> None:
        self.taken_ns: dict[str, list[int]] = {part: [] for part in PARTS}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what the block takes."""
        begin_ns = time.thread_time_ns()
        yield
        self.taken_ns[name].append(time.thread_time_ns() - begin_ns)

    def medians_us(self) -> list[float]:
        """Of each part, in their order."""
        return [statistics.median(self.taken_ns[part]) / 1000 for part in PARTS]


def bodies(text: bytes, n_bytes: int, n_messages: int, n: int) -> Iterator[bytes]:
    """`n` conversations; as long as the text is long enough, no part of it is in two."""
    step = n_bytes if len(text) > (n + 1) * n_bytes else max(1, (len(text) - n_bytes) // n)
    for start in range(0, n * step, step):
        part = text[start : start + n_bytes].decode(errors="ignore")
        size = -(-len(part) // n_messages)
        contents = [part[at : at + size] for at in range(0, len(part), size)]
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
        yield orjson.dumps({"model": "model", "messages": messages})


def measure(registry: Registry, body: bytes, parts: Parts, has_gpu: bool) -> int:
    """Render one conversation as the endpoint does, step by step; returns the number of ids."""
    endpoint = ChatRender(registry)
    with parts.part("parse"):
        form = (endpoint.utf8_form(body) if has_gpu else None) or endpoint.form(body)
    model = registry.resolve(form.model)
    with parts.part("template"):
        rendered = render_utf8 if has_utf8(form.messages) else render
        prompt = rendered(conversation_of(form), model, False)
    texts = [prompt] if isinstance(prompt, str) else LateTexts([prompt])
    with parts.part("parameters"):
        request = endpoint.rendered(HEAD, form, model, texts, form.add_special_tokens, len(body))
    with parts.part("UTF-8"):
        request.texts()
    with parts.part("encode"):
        result = request.tokenizer.encode(request.documents, request.options)
    with parts.part("write"):
        answer = endpoint.write(HEAD, request, result)
    whole = endpoint.read(HEAD, body)
    if not isinstance(whole, EncodeRequest) or [*whole.documents] != [*request.documents]:
        raise RuntimeError("the steps are not those of the endpoint")
    n_ids = len(orjson.loads(answer.whole)["token_ids"])
    if n_ids != result[0].n_tokens:
        raise RuntimeError("the answer has other ids")
    return n_ids


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder with tokenizer.json and chat template")
    parser.add_argument("text", help="UTF-8 file to cut texts from")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--gpu", action="store_true")
    given = parser.parse_args()
    registry = Registry(ServiceOptions(model=(f"model={given.model}",)), DispatcherOptions())
    registry.load_all()
    text = Path(given.text).read_bytes()
    print("| text, messages | ids | " + " | ".join(PARTS) + " | in all, CPU route |")
    for n_bytes, n_messages in SHAPES:
        parts = Parts()
        n_ids = [
            measure(registry, body, parts, given.gpu) for body in bodies(text, n_bytes, n_messages, given.requests)
        ]
        medians = parts.medians_us()
        cells = [f"{n_bytes:,} B, {n_messages}", f"{statistics.median(n_ids):,.0f}"]
        cells += [f"{median:,.0f}" for median in [*medians, sum(medians) - medians[PARTS.index("UTF-8")]]]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
