"""Small manifests that come along with the first one a session needs."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr

import icefloe
from icefloe.errors import ErrorKind, StorageError
from icefloe.repo.session import Workspace
from icefloe.storage.run import run_blocking
from icefloe.store.operations import get
from icefloe.testing.wrapping import WrappingDriver

NAMES = ("data", "lat", "lon", "time", "windspeed")


class Recording(WrappingDriver):
    """Notes which manifests are read, and refuses some."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.manifests: list[str] = []
        self.refused: set[str] = set()

    async def before(self, method: str, key: str) -> None:
        if key.startswith("manifests/") and method == "get":
            if key in self.refused:
                raise StorageError(f"{key}: no", ErrorKind.OBJECT_NOT_FOUND)
            self.manifests.append(key)


def make(folder: Path, refs_per_shared_manifest: int = 0) -> None:
    config = icefloe.RepositoryConfig(
        manifest=icefloe.ManifestConfig(max_refs_per_shared_manifest=refs_per_shared_manifest)
    )
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)), config)
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    for name in NAMES:
        array: Any = group.create_array(name, shape=(4,), chunks=(1,), dtype="i4")
        array[:] = 1
    session.commit("made")


class Reader:
    """A read-only session whose requests are noted."""

    def __init__(self, folder: Path, config: icefloe.RepositoryConfig | None = None) -> None:
        storage = icefloe.local_filesystem_storage(str(folder))
        handle = icefloe.Repository.open(storage, config).handle
        self.driver = Recording(handle.driver)
        self.handle = replace(handle, assets=replace(handle.assets, driver=self.driver))
        self.state = icefloe.Repository.open(storage).readonly_session("main")._state

    def key(self, name: str) -> str:
        _, array = self.state.array(f"/{name}")
        return f"manifests/{array.manifests[0].id.text}"

    def read(self, name: str) -> None:
        assert (
            run_blocking(get(Workspace(self.handle, self.state), f"{name}/c/0", None)) is not None
        )

    def expect(self, *names: str) -> None:
        assert self.driver.manifests == [self.key(name) for name in names]
        self.driver.manifests.clear()


def preload(**options: Any) -> icefloe.RepositoryConfig:
    settings = icefloe.ManifestPreloadConfig(**options)
    return icefloe.RepositoryConfig(manifest=icefloe.ManifestConfig(preload=settings))


def test_coordinates_come_along_with_the_first_manifest(tmp_path: Path) -> None:
    make(tmp_path)
    reader = Reader(tmp_path)
    reader.expect()  # opening a session fetches none
    reader.read("data")
    reader.expect("data", "lat", "lon", "time")
    for name in ("lat", "time", "data", "windspeed"):
        reader.read(name)
    reader.expect("windspeed")


def test_arrays_that_share_a_manifest_come_along_with_each_other(tmp_path: Path) -> None:
    make(tmp_path, refs_per_shared_manifest=8)  # two arrays
    reader = Reader(tmp_path)
    assert reader.key("lat") == reader.key("data") != reader.key("lon")
    reader.read("windspeed")
    reader.expect("windspeed", "lat", "lon")
    for name in NAMES:
        reader.read(name)
    reader.expect()


def test_the_settings_decide_what_comes_along(tmp_path: Path) -> None:
    make(tmp_path)
    condition = icefloe.ManifestPreloadCondition
    for config, expected in (
        (preload(max_total_refs=0), ("data",)),
        (preload(preload_if=condition.false()), ("data",)),
        (preload(preload_if=condition.true()), NAMES),
        (preload(preload_if=condition.true(), max_arrays_to_scan=2), ("data", "lat")),
        (preload(preload_if=condition.true(), max_total_refs=8), ("data", "lat")),
        (preload(preload_if=condition.name_matches("wind")), ("data", "windspeed")),
        (icefloe.RepositoryConfig(caching=icefloe.CachingConfig(num_chunk_refs=0)), ("data",)),
    ):
        reader = Reader(tmp_path, config)
        reader.read("data")
        reader.expect(*expected)


def test_what_cannot_be_fetched_ahead_does_not_matter_until_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path)
    reader = Reader(tmp_path)
    reader.driver.refused = {reader.key("lon")}
    with caplog.at_level(logging.WARNING):
        reader.read("data")
    assert "fetched ahead" in caplog.text
    reader.read("time")
    with pytest.raises(StorageError):
        reader.read("lon")
