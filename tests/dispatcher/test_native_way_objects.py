"""The short way in C believes no object that a caller replaced, or did not make."""

from __future__ import annotations

import gc
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.tokenizer import Tokenizer
from tests.dispatcher.group_caller import PLAIN
from tests.dispatcher.native_rig import LONG, NativeCalls, text_of
from tests.dispatcher.test_native_way import calls, module

__all__ = ["calls", "module"]
pytestmark = pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)


def test_objects_that_are_not_what_they_seem(calls: NativeCalls, synthetic: Tokenizer) -> None:
    """Leases, memory and places that a caller replaced are not believed."""

    text, other = calls.reserved(text_of()), calls.reserved(text_of(seed=2))
    lease, elsewhere = text.lease, other.lease
    assert lease is not None
    assert lease.place is not None
    assert elsewhere is not None
    assert elsewhere.place is not None
    odd = SimpleNamespace(place=lease.place, way=lease.way, unused=[None], slot=lease.slot)
    rest: list[Any] = [lambda *told: None, calls.tokenizer, PLAIN, "", "gpu"]
    assert elsewhere.place.take(text, lease, *rest) is None
    text.lease = cast(Any, odd)
    assert lease.place.take(text, odd, *rest) is None
    text.lease = lease
    memory = text.memory
    for wrong in (memoryview(bytearray(LONG)), elsewhere.slot.text[:LONG], lease.slot.text[: LONG + 1], None, 1):
        text.memory = cast(Any, wrong)
        assert lease.place.take(text, lease, *rest) is None
    text.memory = memory
    assert lease.place.take(text[1:], lease, *rest) is None
    assert calls.device.n_direct == 0
    assert lease.place.take(text, lease, *rest) is not None
    assert lease.place.take(text, lease, *rest) is None
    assert calls.device.n_direct == 1
    calls.until(lambda: calls.native.n_flying == 0)


def test_objects_that_were_not_made(module: ModuleType, synthetic: Tokenizer) -> None:
    """Are of no use, and no harm."""
    way, place, ending = (kind.__new__(kind) for kind in (module.NativeWay, module.NativePlace, module.NativeEnding))
    with pytest.raises(TypeError):
        way.kind_of(b"abc")
    assert place.take(*range(7)) is None
    way.calm()
    assert way.turn(0.0) is False
    assert way.give_up() is None
    place.close()
    del way, place, ending
    gc.collect()


def test_wrong_arguments(calls: NativeCalls, module: ModuleType, synthetic: Tokenizer) -> None:
    """Are errors of Python."""
    lease = calls.reserved(text_of()).lease
    assert lease is not None
    assert lease.place is not None
    take: Any = lease.place.take
    for n in (0, 1, 8):
        with pytest.raises(TypeError):
            take(*range(n))
    assert take(*range(7)) is None
    for wrong in (module.NativePlace, module.NativeEnding, module.NativeWay):
        with pytest.raises(TypeError):
            wrong(1, 2, 3)
    with pytest.raises(TypeError):
        calls.native.turn(cast(Any, "soon")) if calls.start(text_of()) else None
    calls.right()
