"""A dispatcher with a scripted tokenizer and a loop that the test turns."""

from __future__ import annotations

from typing import Any

from dispatcher.dispatcher import Dispatcher
from dispatcher.options import DispatcherOptions
from tests.fakes import FakeJob, FakeLoop, FakeTokenizer, submit

LONG = 1 << 20
"""Size of a body that makes its job a long one."""


class Rig:
    """A dispatcher with a scripted tokenizer and a loop that the test turns."""

    def __init__(self, n_workers: int = 4, deferred: bool = False, gpus: Any = None, **options: Any) -> None:
        self.loop = FakeLoop()
        self.tokenizer = FakeTokenizer()
        self.dispatcher = Dispatcher(
            DispatcherOptions(cpu_workers=n_workers, **options),
            self.loop.wake,
            self.loop.wake if deferred else None,
            gpus,
        )

    def submit(self, *documents: str, **more: object) -> FakeJob:
        """Submit one encode job."""
        return submit(self.dispatcher, self.tokenizer, *documents, **more)

    def finish(self, *jobs: FakeJob) -> None:
        """Turn the loop until these jobs ended."""
        self.loop.run_until(lambda: all(job.ended for job in jobs))

    def settle(self) -> None:
        """Turn the loop until nothing is in flight."""
        self.loop.run_until(lambda: self.dispatcher.n_in_flight == 0)
        assert (self.dispatcher.admission.n_requests, self.dispatcher.admission.n_bytes) == (0, 0)

    def close(self) -> None:
        """Open every gate and stop."""
        for gate in self.tokenizer.gates.values():
            gate.open()
        self.dispatcher.close()


def ids(document: str) -> list[int]:
    """What the scripted tokenizer makes of a document."""
    return [ord(c) for c in document]
