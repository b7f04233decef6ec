"""Scenarios about chunk grids, manifest splitting and virtual chunk locations (2.x)."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.basics import create_array
from tests.golden.official import (
    BUCKET,
    bucket_container,
    container,
    create_repository,
    icechunk,
    open_repository,
    put,
    zarr,
)
from tests.golden.recorder import Checksum, Recorder


def write_grids(root: Path, spec: int, record: Recorder) -> None:
    """Rectilinear grids, and chunks relabelled by shift_array and reindex_array."""
    repo = create_repository(root, spec=spec)
    session = repo.writable_session("main")
    store = session.store
    top = zarr.create_group(store)
    # Axis 0 has 3 chunks of uneven sizes; axis 1 has 4, three of them as one run.
    _put_rectilinear(store, "uneven", [10, 7], [[2, 3, 5], [[2, 3], 1]], ["y", None])
    put(store, "uneven/c/0/3", b"\x01" * 2)
    put(store, "uneven/c/2/0", b"\x02" * 10)
    # One chunk of 30 x 20 = 600 bytes is too large to be stored inline.
    _put_rectilinear(store, "uneven native", [31, 20], [[1, 30], [20]], None)
    put(store, "uneven native/c/1/0", b"\x03" * 600)
    _put_rectilinear(store, "uneven empty", [0], [[]], ["nothing"])
    shifted = create_array(top, "shifted", (6,), chunks=(1,))
    shifted[:] = np.arange(1, 7)
    reindexed = create_array(top, "reindexed", (2, 3), chunks=(1, 1))
    reindexed[:] = np.arange(1, 7).reshape(2, 3)
    create_array(top, "one chunk larger than the array", (3,), chunks=(100,))[:] = 1
    record.labels["grids"] = session.commit("grids")

    session = repo.writable_session("main")
    session.shift_array("/shifted", [2])
    session.reindex_array("/reindexed", lambda index: [index[0], 2 - index[1]])
    # Another document with more chunks: chunk indices keep their meaning.
    _put_rectilinear(session.store, "uneven", [12, 7], [[2, 3, 5, 2], [[2, 3], 1]], ["y", None])
    put(session.store, "uneven/c/3/3", b"\x04" * 2)
    record.labels["changed"] = session.commit("shifted, reindexed, extended")


def _put_rectilinear(
    store: Any, path: str, shape: list[int], sizes: list[Any], names: list[Any] | None
) -> None:
    configuration = {"kind": "inline", "chunk_shapes": sizes}
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "rectilinear", "configuration": configuration},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    if names is not None:
        document["dimension_names"] = names
    put(store, f"{path}/zarr.json", json.dumps(document).encode())


def write_splits(root: Path, spec: int, record: Recorder) -> None:
    """Several manifests per array, then another layout: lazily, by rewrite, by amended rewrite."""
    repo = create_repository(root, spec=spec, config=_split_config(time=2, axis=3))
    session = repo.writable_session("main")
    top = zarr.create_group(session.store)
    grid = create_array(top, "grid", (4, 4), chunks=(1, 1), dimension_names=["time", "x"])
    grid[:] = np.arange(1, 17).reshape(4, 4)
    create_array(top, "whole", (4,), chunks=(1,))
    record.labels["split"] = session.commit("2 x 3")

    # Only the changed part moves to the new layout.
    repo = open_repository(root, config=_split_config(time=4, axis=2))
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+")["grid"][0, 0] = 100
    record.labels["lazily"] = session.commit("4 x 2, where touched")
    repo = open_repository(root, config=_split_config(time=3, axis=5))
    record.labels["rewritten"] = repo.rewrite_manifests("3 x 5", branch="main", metadata={"m": 1})
    if spec >= 2:
        repo = open_repository(root, config=_split_config(time=9, axis=9))
        record.labels["amended"] = repo.rewrite_manifests(
            "one manifest", branch="main", commit_method="amend"
        )


def _split_config(*, time: int, axis: int) -> Any:
    array = icechunk.ManifestSplitCondition
    dimension = icechunk.ManifestSplitDimCondition
    rules = (
        (array.name_matches("^whole$"), ((dimension.Any(), 1000),)),
        (
            array.and_conditions([array.AnyArray(), array.path_matches("grid")]),
            ((dimension.DimensionName("^time$"), time), (dimension.Axis(1), axis)),
        ),
    )
    splitting = icechunk.ManifestSplittingConfig(rules)
    return icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=splitting))


def write_locations(root: Path, spec: int, record: Recorder) -> None:
    """Manifests large enough for dictionary-compressed locations, and some that are not."""
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(bucket_container())
    store_config = icechunk.s3_store(region="eu-central-1", anonymous=True)
    config.set_virtual_chunk_container(
        container("s3://named-bucket/some/prefix/", store_config, name="archive")
    )
    repo = create_repository(root, spec=spec, config=config)
    session = repo.writable_session("main")
    store = session.store
    top = zarr.create_group(store)
    modified = dt.datetime(2023, 1, 2, 3, 4, 5, tzinfo=dt.UTC)

    create_array(top, "equal", (1200,), chunks=(1,))
    url = BUCKET + "one/large/file.nc"
    equal = [((row,), url, 100 * row, 100, None) for row in range(1200)]
    record.set_virtual_refs(store, "/equal", equal)

    create_array(top, "distinct", (30, 40), chunks=(1, 1))
    distinct: list[tuple[tuple[int, int], str, int, int, Checksum]] = []
    for row in range(30):
        for column in range(40):
            checksum: Checksum = [None, f"etag-{row}", modified][column % 3]
            url = f"{BUCKET}years/{1990 + row}/größe-{column:03d}.nc"
            distinct.append(((row, column), url, 8 * column, 1 + row, checksum))
    record.set_virtual_refs(store, "/distinct", distinct)

    # Virtual, inline and native refs in one compressed manifest.
    create_array(top, "mixed", (1010, 600), chunks=(1, 600))
    mixed = [((row, 0), f"{BUCKET}mixed/{row % 7}", row, 600, None) for row in range(1005)]
    record.set_virtual_refs(store, "/mixed", mixed)
    put(store, "mixed/c/1006/0", b"inline")
    put(store, "mixed/c/1007/0", bytes(range(200)) * 3)

    # One ref short of the threshold: plain locations.
    create_array(top, "below", (999,), chunks=(1,))
    below = [((row,), f"{BUCKET}below/{row % 9}", row, 1, None) for row in range(999)]
    record.set_virtual_refs(store, "/below", below)

    create_array(top, "relative", (4,), chunks=(1,))
    record.set_virtual_refs(
        store,
        "/relative",
        [
            ((0,), "vcc://archive/file.nc", 0, 10, None),
            ((1,), "vcc://archive/dir/größe.nc", 5, 10, "etag"),
            ((2,), "S3://named-bucket/some/prefix/upper//../case", 0, 1, modified),
            ((3,), "s3://named-bucket/some/prefix/a%20b?c#d", 0, 1, None),
        ],
    )
    record.labels["locations"] = session.commit("locations")
