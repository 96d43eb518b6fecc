"""The short way where a text lies in a slot of another model, and on one GPU of two."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

import numpy as np

from dispatcher.gpu.fake_link import FakeEngine, make_slots
from dispatcher.gpu.link import Completion
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpu.short_way import ShortCall
from dispatcher.gpus import Gpus
from tests.dispatcher.group_caller import PLAIN
from tests.dispatcher.test_short_way import LONG, ShortCalls, always, calls, text_of
from tests.fakes import FakeTokenizer
from tests.gpu_rig import KEY, GpuRig, code_points

__all__ = ["always", "calls"]
OTHER = "other"


class TwoModels(FakeEngine):
    """Ids of the other model are a thousand higher."""

    def _finish(self, completion: Completion, n_documents: int, flags: int) -> None:
        higher = np.uint32(1000 if completion.slot.model_key == OTHER else 0)
        self.encode = lambda document: code_points(document) + higher
        super()._finish(completion, n_documents, flags)


def test_a_text_in_the_slot_of_another_model(calls: ShortCalls) -> None:
    """Is copied, each time: it opens no way there."""
    engine = TwoModels(None, {KEY: make_slots(KEY), OTHER: make_slots(OTHER, first_number=1000)})
    calls.rig.gpus.routes[0].attach(engine)
    other = FakeTokenizer()
    other.spec = dataclasses.replace(other.spec, digest=OTHER)
    for _ in range(3):
        text = calls.reserved(text_of())
        assert not isinstance(calls.rig.dispatcher.encode_group(other, [text], calls._tell, PLAIN), ShortCall)
        ids = np.frombuffer(calls.result().ids[0], "<u4")
        assert ids.tolist() == [byte + 1000 for byte in text_of()]


def test_two_gpus_share(always: None) -> None:
    """A text is received where least is under way, also when that is on the short way."""
    rig = GpuRig(n_gpus=2)
    calls, gpus = ShortCalls(rig), rig.gpus
    engines = [gpus.start(gpu, threaded=False) for gpu in range(2)]

    def reserved() -> ReservedText:
        text = Gpus.reserve(cast(Gpus, SimpleNamespace(_routes=gpus.routes)), KEY, LONG)
        assert text is not None
        text.data[:] = text_of()
        return text

    for route in gpus.routes:
        text = route.reserve(KEY, LONG)
        assert text is not None
        text.data[:] = text_of()
        calls.start(text)
        for turned in gpus.routes:
            turned.turn(0.0)
        calls.right()
        del text
    for engine in engines:
        engine.is_hung = True
    assert all(isinstance(calls.start(reserved()), ShortCall) for _ in range(2))
    assert [engine.n_running for engine in engines] == [1, 1]
    rig.close()
