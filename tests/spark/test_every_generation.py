"""Spark's calls on repositories of every generation: cells, all tables, and what `files` lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("icechunk", reason="official icechunk 2 needs Python 3.12")

import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe
import icefloe.spark
from icefloe import FormatError, NumberedRefs, Repository, StateFileDataset
from icefloe.errors import ReadOnlyError
from icefloe.ids import encode_base32
from icefloe.legacy.numbered.parquet_files import id_of_file
from icefloe.scans.metadata_tables import TABLES, plan_table
from icefloe.scans.scan import pin
from icefloe.spark.versions import to_arrow
from tests.legacy.migration.test_written_generations import write_history
from tests.legacy.numbered.releases import RELEASES
from tests.legacy.numbered.test_old_releases import built

Make = Callable[[Path], Repository]


def release(name: str) -> Make:
    return lambda folder: built(RELEASES[name], folder, 5)[1]


def written(generation: Any) -> Make:
    def make(folder: Path) -> Repository:
        storage = icefloe.local_filesystem_storage(str(folder / "repo"))
        config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=4)
        repo = Repository.create(storage, config, generation=generation)
        write_history(repo, seed=4)
        return repo

    return make


WORLDS: dict[str, Make] = {
    **{name: release(name) for name in RELEASES},
    "state file": written(StateFileDataset("strict")),
    "state file, wide": written(StateFileDataset("wide")),
    "numbered, JSON": written(NumberedRefs("json", inline_attributes_bytes=4)),
    "numbered, MessagePack": written(NumberedRefs("msgpack")),
    "numbered, binary": written(NumberedRefs("binary")),
}
QUICK = ("2024-09", "0.1.0", "state file")


def check_tables(repo: Repository, found: dict[str, list[dict[str, Any]]]) -> None:
    """The tables say what the repository says."""
    group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    nodes = {"/", *("/" + path for path, _ in group.members(max_depth=None))}
    assert {row["path"] for row in found["nodes"]} == nodes
    history = list(repo.ancestry(branch="main"))
    assert [row["snapshot_id"] for row in found["history"]] == [entry.id for entry in history]
    assert {row["message"] for row in found["snapshots"]} >= {entry.message for entry in history}
    tips = {(row["name"], row["type"]): row["snapshot_id"] for row in found["refs"]}
    assert tips == {
        **{(each, "BRANCH"): repo.lookup_branch(each) for each in repo.list_branches()},
        **{(each, "TAG"): repo.lookup_tag(each) for each in repo.list_tags()},
    }
    check_files(repo, found)
    assert {row["snapshot_id"] for row in found["changes"]} <= {entry.id for entry in history}


@pytest.mark.parametrize("name", WORLDS)
def test_every_table_of_the_data_source(name: str, tmp_path: Path) -> None:
    """The scans of the data source, without a Spark session."""
    repo = WORLDS[name](tmp_path)
    source = pin(repo, branch="main")
    found: dict[str, list[dict[str, Any]]] = {}
    for table in TABLES.keys() - {"ops"}:
        scan = plan_table(source, table, "main")
        batches = [batch for at in range(scan.num_partitions) for batch in scan.read(at)]
        found[table] = pa.Table.from_batches(batches, scan.schema).to_pylist()
    check_tables(repo, found)
    with pytest.raises(FormatError, match="needs a repository of spec version 2"):
        plan_table(source, "ops", "main")


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in WORLDS],
)
def test_every_table_and_cells(spark: SparkSession, name: str, tmp_path: Path) -> None:
    repo = WORLDS[name](tmp_path)
    found = {
        table: to_arrow(icefloe.spark.table(spark, repo, table)).to_pylist()
        for table in TABLES.keys() - {"ops"}
    }
    check_tables(repo, found)
    group: Any = zarr.open_group(repo.readonly_session("main").store, mode="r")
    path, array = next(
        (path, node)
        for path, node in group.members(max_depth=None)
        if isinstance(node, zarr.Array) and node.ndim and node.dtype.kind in "iuf"
    )
    folder, _, variable = path.rpartition("/")
    cells = to_arrow(icefloe.spark.read(spark, repo, variables=[variable], group=folder))
    values = np.sort(cells[variable].to_numpy())
    np.testing.assert_array_equal(values, np.sort(np.asarray(array[...]).ravel()))


def id_of(path: str) -> str:
    """The id that a file is named by, as tables show it. Parquet files are named by base64."""
    name = path.rpartition("/")[2]
    raw = id_of_file(name.encode()) if name.endswith(".parquet") else None
    return name if raw is None else encode_base32(raw)


def check_files(repo: Repository, found: dict[str, list[dict[str, Any]]]) -> None:
    """Every stored object is listed, and what the tables name is referred to."""
    listed = {row["path"]: row for row in found["files"]}
    stored = {key for key, _ in repo.storage.list_objects()}
    assert listed.keys() == {key for key in stored if not key.startswith("icefloe")}
    assert {row["path"] for row in found["manifests"]} <= listed.keys()
    chunks = {row["chunk_id"] for row in found["chunks"] if row["chunk_id"] is not None}
    names = {id_of(path) for path, row in listed.items() if row["kind"] == "chunk"}
    assert chunks <= names
    dead = {path for path, row in listed.items() if not row["is_referenced"]}
    assert not dead & {row["path"] for row in found["manifests"]}
    assert not {id_of(path) for path in dead} & chunks
    orphans = {row["kind"] for row in found["files"] if not row["is_referenced"]}
    assert orphans <= {"chunk", "manifest"}, dead


# -- ingest


def files(folder: Path) -> list[str]:
    paths = [folder / f"part{number}.nc" for number in range(2)]
    for number, path in enumerate(paths):
        values = np.arange(20.0).reshape(4, 5) + number
        times = np.arange(4) + 4 * number
        dataset = xr.Dataset({"v": (("t", "x"), values)}, coords={"t": times, "x": np.arange(5.0)})
        dataset.to_netcdf(path, engine="h5netcdf")
    return [str(path) for path in paths]


def test_values_are_ingested_into_a_dataset_with_a_state_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    repo = WORLDS["state file"](tmp_path)
    for path in files(tmp_path):
        icefloe.spark.ingest(spark, path, repo, concat_dim="t", group="in", append=True)
    session = Repository.open(repo.storage).readonly_session("main")
    found = xr.open_zarr(session.store, group="in", consolidated=False)
    expected = np.concatenate([np.arange(20.0).reshape(4, 5) + number for number in range(2)])
    np.testing.assert_array_equal(found["v"].values, expected)


@pytest.mark.parametrize(
    ("name", "mode", "reason"),
    [
        ("state file", "virtual", "is not possible in a dataset with a state file"),
        ("numbered, JSON", "native", "is not possible in a repository with numbered refs"),
        ("numbered, JSON", "virtual", "is not possible in a repository with numbered refs"),
        ("2024-09", "native", "can only be read"),
        ("alpha.8", "native", "can only be read"),
        ("0.1.0", "virtual", "can only be read"),
    ],
)
def test_other_ingests_want_a_migration_first(
    spark: SparkSession, name: str, mode: Any, reason: str, tmp_path: Path
) -> None:
    repo = WORLDS[name](tmp_path)
    tip = repo.lookup_branch("main")
    with pytest.raises((FormatError, ReadOnlyError), match=f"{reason}.*; migrate it first"):
        icefloe.spark.ingest(spark, files(tmp_path), repo, concat_dim="t", group="in", mode=mode)
    assert Repository.open(repo.storage).lookup_branch("main") == tip
