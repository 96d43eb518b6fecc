"""Models that come and go: a change says all that another process needs to make the same one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dispatcher.meter import ThreadClocks
from service.additions import Additions, Change
from service.errors import Conflict, UnknownModel
from tests.service.small_model import registry_of, write_model


def test_a_change_is_the_same_everywhere(tmp_path: Path) -> None:
    """Two registries that make the changes of one have the same models with the same ids."""

    async def test() -> None:
        write_model(tmp_path / "a")
        registries = [registry_of(f"first={tmp_path / 'a'}") for _ in range(2)]
        added = Change(**Change("add", "later", str(tmp_path / "a")).to_json())
        for registry in registries:
            additions = Additions(registry, ThreadClocks())
            model, load = additions.make(added)
            assert (model.id, model.is_added) == (added.id, True)
            assert additions.named(added.id) is additions.named("later") is model
            assert load is not None
            await load
            assert model.state == "ready"
            with pytest.raises(Conflict):
                additions.make(Change("add", "later", "elsewhere"))
            assert additions.make(Change("remove", "later")) == (model, None)
            with pytest.raises(UnknownModel):
                additions.make(Change("remove", "later"))
            with pytest.raises(Conflict):
                additions.make(Change("remove", "first"))
            registry.close()

    asyncio.run(test())
