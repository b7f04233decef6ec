"""Repositories that commands are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import icefloe
from tests.cli.calling import here


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two commits to an array, the first of them tagged."""
    storage = icefloe.local_filesystem_storage(str(tmp_path / "weather"))
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config)
    with repo.transaction("main", message="first") as store:
        t2m = zarr.create_array(
            store, name="surface/t2m", shape=(4, 6), chunks=(2, 6), dtype="f4", dimension_names="tx"
        )
        t2m[:] = 273
    repo.create_tag("v1", repo.lookup_branch("main"))
    with repo.transaction("main", message="second [bold]") as store:
        zarr.open_array(store, path="surface/t2m")[0] = 280
    return tmp_path / "weather"


@pytest.fixture
def branched(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.parent / "home"))
    done = here("branch", "create", place, "old")
    assert done.returncode == 0, done.stderr
    zarr.create_array(place.parent / "source.zarr/a", shape=(3,), dtype="i8", zarr_format=2)
    zarr.open_group(place.parent / "source.zarr", zarr_format=2)
    return place
