"""Knobs of the service; flags, environment names and docs/settings.md are generated from them."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.options import knob

DIALECTS = ("vllm", "sglang", "llamacpp", "tei")
"""Servers whose formats of /tokenize and /detokenize are spoken."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The outside of the service."""

    host: str = knob("127.0.0.1", "Address of the TCP listener; empty = no TCP.")
    port: int = knob(8400, "Port of the TCP listener; 0 = any free port.", at_most=65535)
    uds: str = knob("", "Path of the Unix socket; empty = none. A stale socket file is replaced, a live one refused.")
    uds_mode: str = knob("0660", "Octal permissions of the Unix socket.")
    model: tuple[str, ...] = knob(
        (), "NAME=PATH of a model directory or tokenizer.json; repeatable. None = the embedded model."
    )
    alias: tuple[str, ...] = knob((), "NAME=MODEL: another name for a model; repeatable.")
    default_model: str = knob("", "Model for requests that name none; empty = the first one.")
    dialect: str = knob("vllm", "Dialect of /tokenize and /detokenize for requests that name none.", DIALECTS)
    trust_request_chat_template: bool = knob(
        False, "Render chat templates that come with requests; within the same bounds as those of models."
    )
    frontends: int = knob(
        1,
        "Processes that serve together on the same addresses, each with an event loop and models of its own; limits "
        "are divided among them.",
        at_least=1,
        at_most=64,
    )
    admin_key: str = knob(
        "",
        "Secret of /v1/tokenizers, sent as `Authorization: Bearer`; empty = no such endpoint. Better set by its "
        "environment variable: flags can be seen by others.",
    )
    max_body_bytes: int = knob(64 << 20, "Largest request body; a larger one is refused with 413.")
    keep_alive_s: int = knob(120, "Seconds that an idle connection stays open; above the 90 s of Go clients.")
    drain_timeout_s: float = knob(30.0, "Seconds that requests in flight get to finish after SIGTERM.")
    log_level: str = knob("info", "Log level.", ("debug", "info", "warning", "error"))
    log_format: str = knob("text", "Log lines as text or JSON.", ("text", "json"))
    banner: str = knob(
        "auto",
        "Print addresses and an example request when ready; auto = when standard output is a terminal.",
        ("auto", "always", "never"),
    )
    access_log: bool = knob(False, "Log one line per request (never its text).")
