"""Recognising repositories of the generations before spec version 1."""

from __future__ import annotations

from icefloe.config import RepositoryConfig
from icefloe.errors import FormatError, StorageError
from icefloe.format import layout
from icefloe.format.config.file import decode_config_yaml
from icefloe.legacy.detect import STATE_FILE, Detected, detect, generation_of
from icefloe.legacy.generation import Generation
from icefloe.legacy.numbered.files import form_of
from icefloe.legacy.numbered.json_refs import decode_ref
from icefloe.legacy.numbered.names import PROTOTYPE
from icefloe.legacy.numbered.parquet_files import PARQUET_PROTOTYPE
from icefloe.repo.families.numbered.family import Numbered
from icefloe.repo.families.state_file.family import FoundState
from icefloe.repo.handle import FoundRepository
from icefloe.storage.driver import Driver, find_object

_REFS = "r"  # the common prefix of `r/` and `refs/`: one listing for both


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


async def find_older(driver: Driver) -> FoundRepository | None:
    """The older repository stored here, or None.

    Raises:
        FormatError: there are two repositories of different generations, or a file is missing.
    """
    try:
        # Numbered refs are found by listing; a state file has a name.
        keys = [entry.key for entry in await driver.list(_REFS)] if driver.can_list else []
        state = await find_object(driver, STATE_FILE)
    except StorageError as error:
        if error.is_bucket_missing:
            return None
        raise
    found = detect([*keys, STATE_FILE] if state is not None else keys)
    if found is None:
        return None
    if found.names is None:
        assert state is not None
        return FoundState(*state)
    return FoundNumbered(await _numbered(driver, found), driver)


async def _numbered(driver: Driver, found: Detected) -> Numbered:
    """The family, from the newest file of `main` and the snapshot that it points at."""
    assert found.names is not None
    label = f"{found.key} of {generation_of(found.names).noun}"
    ref = await find_object(driver, found.key)
    if ref is None:
        raise FormatError(f"{label} was listed and is gone; try again")
    snapshot_id = decode_ref(ref[0], label)
    key = found.names.snapshot_key(snapshot_id)
    snapshot = await find_object(driver, key)
    if snapshot is None and found.names == PROTOTYPE:
        as_parquet = await find_object(driver, PARQUET_PROTOTYPE.snapshot_key(snapshot_id))
        if as_parquet is not None:
            return Numbered(PARQUET_PROTOTYPE, Generation.NUMBERED, id_size=len(snapshot_id))
    if snapshot is None:
        raise FormatError(f"{label} points at {key}, which does not exist")
    generation = generation_of(found.names, snapshot[0])
    return Numbered(found.names, generation, form_of(snapshot[0]), len(snapshot_id))
