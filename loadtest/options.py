"""Knobs of a load test; the flags of `sidetok-loadtest run` are made from them."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.options import knob


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """One load test."""

    target: str = knob("http://127.0.0.1:8400", "http://HOST:PORT, or unix:PATH of a socket that speaks HTTP.")
    api: str = knob(
        "native",
        "What is asked: native = /v1/encode, vllm = /tokenize, vllm-render = /v1/chat/completions/render.",
        ("native", "vllm", "vllm-render"),
    )
    codec: str = knob(
        "octet-stream", "Codec of the native API; the others speak JSON.", ("octet-stream", "msgpack", "json")
    )
    route: str = knob("auto", "Route that requests ask for; auto leaves it to the server.", ("auto", "cpu", "gpu"))
    model: str = knob("", "Model to ask for; empty = none named, or the first one where one must be named.")
    rate: str = knob("", "Offered requests/s; several by commas, one step each. Empty = the scenario's own.")
    find_saturation: bool = knob(
        False, "Raise the rate from --rate by --step-factor until a step is saturated, or lower it until none is."
    )
    step_factor: float = knob(1.4, "Ratio of the rates of two steps of --find-saturation.")
    max_steps: int = knob(20, "Most steps of --find-saturation.")
    refine: int = knob(0, "Further steps of --find-saturation, halfway between what was sustained and what was not.")
    duration_s: float = knob(10.0, "Measured time of each step.")
    warm_up_s: float = knob(1.0, "Load before the measured time of each step; not in its latencies.")
    arrivals: str = knob("", "constant, poisson or gamma:SHAPE. Empty = the scenario's own.")
    clients: int = knob(2, "Client processes.")
    connections: int = knob(128, "Most connections of all client processes together.")
    timeout_s: float = knob(30.0, "Time from the intended start after which a request is given up.")
    seed: int = knob(1, "Everything random is drawn from it: equal seeds offer equal requests at equal times.")
    text: str = knob("", "Folder of texts. Empty = ../shared/data/corpora beside the checkout, else text made here.")
    scale: float = knob(1.0, "Factor on the sizes of documents and contexts, for small machines.")
    gpus: int = knob(1, "Simulated GPUs: the rate of `fleet` unless --rate is given.")
    long_rate: float = knob(0.5, "Long documents/s of `mixed`, hostile inputs/s of `hostile`.")
    sizes: str = knob("1024,16384,480000", "Bytes of the requests of `closed`, by commas, a step each.")
    messages: int = knob(1, "Messages that each request of `closed` is cut into, for APIs that have such.")
    think_time_s: float = knob(5.0, "Mean time between two calls of one session of `agent`.")
    tokenizer: str = knob(
        "",
        "tokenizer.json of the model, or a folder with it, for checking ids. Empty = the embedded one if it is served.",
    )
    check: int = knob(200, "Answers of each step whose ids are compared with the reference.")
    check_against: str = knob("", "Another server of the same API whose ids are right; instead of the reference.")
    check_bytes: int = knob(32 << 20, "Most text that is compared in each step.")
    probe: str = knob("", "Path asked by GET beside the load, such as /health; a group of its own, in no other figure.")
    probe_rate: float = knob(20.0, "Probes/s, at constant gaps.")
    neighbours: int = knob(
        0, "Busy processes (compiles and searches) beside the service, on the machine of the load test."
    )
    neighbour_cpus: str = knob("", "CPUs of the busy processes, like 0-3,8. Empty = those of the load test.")
    server_pid: str = knob(
        "", "Processes of a local server, by commas: their CPU time, with children, is measured, too."
    )
    output: str = knob("", "File of the result (JSON). Empty = sidetok-SCENARIO.json.")
