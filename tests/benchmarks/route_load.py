"""What the dispatcher costs around replays: open-loop load, and an engine process that answers after a fixed time.

    python -m tests.benchmarks.route_load TOKENIZER_JSON [--rates 10000,40000] [--rounds 3] [--forms threaded,driven]

Everything is real but the replays: messages, threads, callbacks, and the waits of the engine. No GPU is needed. Forms
take turns; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from statistics import median

from dispatcher.gpu.options import LOCAL
from tests.benchmarks.dispatch_load import Load
from tests.benchmarks.dispatch_run import Row, Trial, warm_up
from tests.benchmarks.dispatch_service import DispatcherService
from tests.benchmarks.still_engine import still_engine_command, still_gpu
from tests.engine_rig import WORDS
from tests.gpu_core.device_data import Reference

REPLAY_US = 40.0
FIGURES = (
    "replay_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "host_cpu_us",
    "frontend_us",
    "generator_cpu_us",
    "documents_per_replay",
    "us_per_replay",
)


def measure(service: DispatcherService, trial: Trial, policy: str) -> Row:
    """One run of a policy."""
    row = trial.run(service.target(policy), None)
    parts = row["cpu_parts_us"]
    row["frontend_us"] = row["host_cpu_us"] - parts.get("engine", 0.0)
    row["us_per_replay"] = row["frontend_us"] * row.get("documents_per_replay", 0.0)
    if row["unanswered"] or row["faults"]:
        raise RuntimeError(f"{row['unanswered']} documents were not answered, {row['faults']}")
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer_json", type=Path)
    parser.add_argument("--rates", default="10000,40000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--policies", default="gpu")
    parser.add_argument("--forms", default="threaded,driven,local")
    parser.add_argument("--replay-us", type=float, default=REPLAY_US)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    data = given.tokenizer_json.read_bytes()
    corpus = {"words": "".join(random.Random(1).choices(WORDS, k=300_000)).encode()}
    reference = Reference(data)
    rows: dict[str, list[Row]] = {}
    command = still_engine_command(given.replay_us)
    for _ in range(given.rounds):
        for form in given.forms.split(","):
            service = (
                DispatcherService(
                    data, gpus="0", n_workers=2, driven=True, engine=LOCAL, make_gpu=still_gpu(given.replay_us)
                )
                if form == "local"
                else DispatcherService(data, gpus="0", n_workers=2, command=command, driven=form == "driven")
            )
            try:
                for rate in map(int, given.rates.split(",")):
                    trial = Trial.of(Load(rate, given.seconds, seed=rate), corpus, reference, n_samples=0)
                    for policy in given.policies.split(","):
                        warm_up(service.target(policy), trial.documents[:64], 0.2)
                        rows.setdefault(f"{form} {policy} {rate}", []).append(measure(service, trial, policy))
            finally:
                service.close()
    for name, some in rows.items():
        figures = {figure: median(row.get(figure) or 0.0 for row in some) for figure in FIGURES}
        print(f"{name:24}", *(f"{figure}={value:.1f}" for figure, value in figures.items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
