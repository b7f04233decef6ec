"""Ingests against xarray's own reading of the same files: every value, type and attribute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icefloe import Repository
from icefloe.virtual import ingest_local
from tests.virtual.datasets import FORMATS, NAMES, check, dataset, expected, read

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_every_format_become_what_xarray_reads(
    tmp_path: Path, repository: Repository, kind: str, mode: Any
) -> None:
    suffix, write, options = FORMATS[kind]
    paths = [tmp_path / f"{name}{suffix}" for name in NAMES]
    for part, path in enumerate(paths):
        write(dataset(part), path)
    result = ingest_local(tmp_path / f"*{suffix}", repository, concat_dim="time", mode=mode)
    assert result.files_added == 4
    assert result.problems == ()
    store = repository.readonly_session("main").store
    wanted = expected(paths, **options)
    check(read(store), wanted)
    if mode == "virtual":
        locations = set(repository.readonly_session("main").all_virtual_chunk_locations())
        is_zarr = suffix == ".zarr"
        assert (
            {location.split("/packed/")[0] for location in locations}
            >= {path.as_uri() for path in paths}
            if is_zarr
            else locations == {path.as_uri() for path in paths}
        )
