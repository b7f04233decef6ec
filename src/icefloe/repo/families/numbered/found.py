"""An older repository with numbered branches, as it is found in a storage."""

from __future__ import annotations

from icefloe.config import RepositoryConfig
from icefloe.errors import FormatError
from icefloe.format import layout
from icefloe.format.config.file import decode_config_yaml
from icefloe.legacy.detect import generation_of
from icefloe.legacy.generation import Generation
from icefloe.legacy.numbered.files import form_of
from icefloe.legacy.numbered.json_refs import decode_ref
from icefloe.legacy.numbered.names import PROTOTYPE, Names
from icefloe.legacy.numbered.parquet_files import PARQUET_PROTOTYPE
from icefloe.repo.families.numbered.family import Numbered
from icefloe.repo.handle import FoundRepository
from icefloe.storage.driver import Driver, find_object


class FoundNumbered(FoundRepository):
    """A repository with numbered branches. Icechunk from alpha.8 on saved a configuration."""

    def __init__(self, family: Numbered, driver: Driver) -> None:
        self.family = family
        self._driver = driver

    async def saved_config(self) -> RepositoryConfig | None:
        assert isinstance(self.family, Numbered)
        if self.family.generation is Generation.NUMBERED:
            return None
        found = await find_object(self._driver, layout.CONFIG_YAML)
        return None if found is None else decode_config_yaml(found[0])


async def found_numbered(driver: Driver, names: Names, newest: str) -> FoundNumbered:
    """The repository with these names. `newest` is the newest file of `main`."""
    return FoundNumbered(await _family(driver, names, newest), driver)


async def _family(driver: Driver, names: Names, newest: str) -> Numbered:
    """The family, from the newest file of `main` and the snapshot that it points at."""
    label = f"{newest} of {generation_of(names).noun}"
    ref = await find_object(driver, newest)
    if ref is None:
        raise FormatError(f"{label} was listed and is gone; try again")
    snapshot_id = decode_ref(ref[0], label)
    key = names.snapshot_key(snapshot_id)
    snapshot = await find_object(driver, key)
    if snapshot is None and names == PROTOTYPE:
        as_parquet = await find_object(driver, PARQUET_PROTOTYPE.snapshot_key(snapshot_id))
        if as_parquet is not None:
            return Numbered(PARQUET_PROTOTYPE, Generation.NUMBERED, id_size=len(snapshot_id))
    if snapshot is None:
        raise FormatError(f"{label} points at {key}, which does not exist")
    generation = generation_of(names, snapshot[0])
    return Numbered(names, generation, form_of(snapshot[0]), len(snapshot_id))
