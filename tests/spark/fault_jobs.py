"""Everything that writes with Spark, as jobs; one process that does the same says what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xarray as xr
import zarr
from pyspark.sql import SparkSession

import icefloe
from icefloe import Repository, Session
from icefloe.credentials import LocalFileSystemAccess
from icefloe.repo.session import all_chunks
from icefloe.scans.metadata_tables import plan_files
from icefloe.scans.scan import pin
from icefloe.spark import (
    Region,
    ingest,
    read,
    shared_write,
    write_dataset,
    write_regions,
    write_table,
)
from icefloe.spark.versions import from_arrow
from icefloe.storage.locations import LocalLocation
from icefloe.storage.run import run_blocking
from icefloe.storage.spec import Storage
from icefloe.virtual import ingest_local
from tests.spark.danger import DangerousStorage, Fault, What
from tests.spark.datasets import rows_of
from tests.spark.test_table_grid import put
from tests.spark.test_table_grid import rows_of as table_rows

NUM_ROWS, ROW_LENGTH = 24, 1500
NUM_FILES = 6
# What may be left over: a fork keeps the changes of its session in a snapshot of its own, and the
# copy of `repo` is made ahead of the commit.
_LOST = {"chunk", "manifest", "snapshot", "transaction_log", "backup"}
_REDUCED = (shared_write.MIN_REDUCED_CHUNKS, shared_write.MIN_CHUNKS_PER_PIECE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job works: its source files, and a repository that the job changes."""

    folder: Path

    @property
    def files(self) -> str:
        return str(self.folder / "files")

    def location(self, name: str) -> LocalLocation:
        return LocalLocation(str(self.folder / name), is_durable=False)

    def create(self, name: str) -> Repository:
        """Small manifests, so that every array has several; files may be referred to."""
        manifest = icefloe.ManifestConfig(max_refs_per_manifest=4)
        config = icefloe.RepositoryConfig(manifest=manifest)
        store = icefloe.local_filesystem_store(self.files)
        config.set_virtual_chunk_container(
            icefloe.VirtualChunkContainer(f"file://{self.files}/", store)
        )
        return Repository.create(Storage(self.location(name)), config, self._access)

    def open(self, name: str = "repository", fault: Fault | None = None) -> Repository:
        location = self.location(name)
        storage = Storage(location) if fault is None else DangerousStorage(location, fault)
        return Repository.open(storage, authorize_virtual_chunk_access=self._access)

    @property
    def _access(self) -> Mapping[str, Any]:
        return {f"file://{self.files}/": LocalFileSystemAccess}

    def fault(self, what: What, point: tuple[str, str], name: str = "") -> Fault:
        return Fault(what, *point, notes=str(self.folder / f"notes {what} {name or point[1][:-1]}"))


CHUNK, MANIFEST = ("put", "chunks/"), ("put", "manifests/")
HANDED_OVER, COMMIT = ("sync", ""), ("put_if", "repo")


@dataclass(frozen=True, slots=True)
class Job:
    """A change to a repository: what is there before, made by Spark, and by one process."""

    begin: Callable[[Place, Repository], None]
    on_spark: Callable[[SparkSession, Place, Repository], None]
    alone: Callable[[Place, Repository], None]
    point: tuple[str, str] = CHUNK
    """A request that its tasks make: faults happen there."""
    is_reduced: bool = False
    again_is_new: bool = False
    """Whether running it again makes another commit, with the same values in it."""

    @property
    def loses(self) -> str | None:
        """The kind of object that a fault makes an orphan; references alone leave nothing."""
        return {CHUNK: "chunk", MANIFEST: "manifest"}.get(self.point)

    def prepare(self, folder: Path) -> Place:
        """The repository before the job, and one that one process has changed."""
        place = Place(folder)
        (folder / "files").mkdir(parents=True)
        for name in ("repository", "plain"):
            self.begin(place, place.create(name))
        self.alone(place, place.open("plain"))
        return place

    def run(self, spark: SparkSession, place: Place, fault: Fault | None = None) -> None:
        """The whole job, with its commit."""
        reduced = (1, 1) if self.is_reduced else _REDUCED
        shared_write.MIN_REDUCED_CHUNKS, shared_write.MIN_CHUNKS_PER_PIECE = reduced
        try:
            self.on_spark(spark, place, place.open(fault=fault))
        finally:
            shared_write.MIN_REDUCED_CHUNKS, shared_write.MIN_CHUNKS_PER_PIECE = _REDUCED


# -- what is in a repository


def state(repository: Repository) -> dict[str, Any]:
    """Every array: its metadata, its values, and which chunks it has."""
    session = repository.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    found: dict[str, Any] = {}
    for path, node in [("", root), *sorted(root.members(max_depth=None))]:
        found[path] = [node.metadata.to_dict()]
        if isinstance(node, zarr.Array):
            indices = _indices(session, f"/{path}")
            assert len(indices) == len(set(indices)), f"{path} has a chunk twice"
            found[path] += [repr(np.asarray(node[...]).tolist()), indices]
    found["virtual"] = sorted(session.all_virtual_chunk_locations())
    return found


def _indices(session: Session, path: str) -> list[tuple[int, ...]]:
    found = run_blocking(all_chunks(session.handle, session._state.view, session._state.node(path)))
    return [tuple(index) for index in found.index.tolist()]


def history(repository: Repository) -> list[str]:
    return [entry.id for entry in repository.ancestry(branch="main")]


def orphans(repository: Repository) -> dict[str, int]:
    """How many objects nothing refers to, by kind; all that is referred to has to be there."""
    rows = rows_of(plan_files(pin(repository))).to_pylist()
    counts: dict[str, int] = {}
    for row in rows:
        if not row["is_referenced"]:
            counts[row["kind"]] = counts.get(row["kind"], 0) + 1
    return counts


def check_unchanged(place: Place, before: tuple[dict[str, Any], list[str]]) -> None:
    repository = place.open()
    assert (state(repository), history(repository)) == before
    check_usable(place, history(repository)[0])


def check_done(place: Place, commits: int | None = None) -> None:
    """The job is done, once: everything is as one process has made it."""
    repository, plain = place.open(), place.open("plain")
    assert state(repository) == state(plain)
    assert len(history(repository)) == (commits or len(history(plain)))
    assert not set(orphans(repository)) - _LOST
    check_usable(place, history(repository)[0])


def check_usable(place: Place, tip: str) -> None:
    """Commits are taken, on a branch of their own."""
    repository = place.open()
    name = f"after {tip}"
    if name not in repository.list_branches():
        repository.create_branch(name, tip)
    session = repository.writable_session(name)
    zarr.create_group(session.store, path=f"extra{len(history(repository))}", overwrite=True)
    session.commit("still takes commits")


# -- regions


def row_values(region: Region) -> Any:
    rows = np.arange(region.start[0], region.stop[0])
    return np.stack(
        [np.random.default_rng(int(at)).integers(0, 1 << 30, ROW_LENGTH) for at in rows]
    )


def _begin_regions(place: Place, repository: Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store,
        name="v",
        shape=(NUM_ROWS, ROW_LENGTH),
        chunks=(1, ROW_LENGTH),
        dtype="i8",
        dimension_names=["row", "x"],
    )
    array[:3] = 7
    session.commit("an array")


def _regions(spark: SparkSession, place: Place, repository: Repository) -> None:
    session = repository.writable_session("main")
    write_regions(spark, session, "v", row_values, region_shape=(1, ROW_LENGTH), num_tasks=4)
    session.commit("regions")


def _regions_alone(place: Place, repository: Repository) -> None:
    session = repository.writable_session("main")
    whole = Region(("row", "x"), (0, 0), (NUM_ROWS, ROW_LENGTH))
    zarr.open_array(session.store, path="v", mode="r+")[:] = row_values(whole)
    session.commit("regions")


# -- a dataset, appended: the last chunks have to be completed

_CHUNKS = {"a": 2, "b": 3, "c": 4, "d": 5}


def _dataset(first: int, steps: int) -> xr.Dataset:
    random = np.random.default_rng(first)
    data = {name: (("t", "x"), random.normal(size=(steps, 200))) for name in _CHUNKS}
    return xr.Dataset(data, {"t": np.arange(first, first + steps)})


def _begin_dataset(place: Place, repository: Repository) -> None:
    session = repository.writable_session("main")
    encoding = {name: {"chunks": (length, 200)} for name, length in _CHUNKS.items()}
    _dataset(0, 7).to_zarr(session.store, encoding=encoding, consolidated=False)
    session.commit("a dataset")


def _append_dataset(spark: SparkSession, place: Place, repository: Repository) -> None:
    lazy = _dataset(7, 13).chunk({"t": 4})
    write_dataset(spark, lazy, repository, append_dim="t", transaction=("nightly", 1))


def _append_dataset_alone(place: Place, repository: Repository) -> None:
    session = repository.writable_session("main")
    _dataset(7, 13).to_zarr(
        session.store, append_dim="t", consolidated=False, safe_chunks=False, mode="a"
    )
    session.commit("more")


# -- a table, appended


def _cells(first: int, steps: int) -> Any:
    random = np.random.default_rng(first)
    shape = (steps, 100)
    return xr.Dataset(
        {
            "v": (("t", "x"), random.normal(size=shape)),
            "n": (("t", "x"), random.integers(9, size=shape)),
        },
        {"t": np.arange(first, first + steps), "x": np.arange(100) / 4},
    )


_TABLE: dict[str, Any] = {"dims": ["t", "x"], "variables": ["v", "n"], "mode": "append"}


def _begin_table(place: Place, repository: Repository) -> None:
    put(repository, table_rows(_cells(0, 6)), chunks={"t": 4}, **_TABLE)


def _append_table(spark: SparkSession, place: Place, repository: Repository) -> None:
    rows = from_arrow(spark, table_rows(_cells(6, 24))).repartition(2, "t")
    write_table(rows, repository, num_tasks=3, transaction=("nightly", 1), **_TABLE)


def _append_table_alone(place: Place, repository: Repository) -> None:
    put(repository, table_rows(_cells(6, 24)), chunks=None, **_TABLE)


# -- a table of values that have nothing beside them: extremes, nulls, far times

_FAR = np.datetime64("2300-07-01T12:00", "us")
_EXTREMES = pa.table(
    {
        "x": np.arange(6),
        "tiny": pa.array([-128, 5, None, 127, 0, -1], pa.int8()),
        "big": pa.array([-(2**63), 2**63 - 1, None, 0, 1, 2]),
        "v": pa.array([1.0, None, 4.0, None, 7.0, None]),
        "t": pa.array([_FAR, None, *[np.datetime64("1960", "us")] * 4]),
    }
)


def _begin_extremes(place: Place, repository: Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store, attributes={"title": "extremes"})
    session.commit("a group")


def _write_extremes(spark: SparkSession, place: Place, repository: Repository) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = from_arrow(spark, _EXTREMES).repartition(2)
    write_table(rows, repository, dims=["x"], variables=_EXTREMES.column_names[1:], num_tasks=2)
    read(spark, repository).createOrReplaceTempView("extremes")
    found = spark.sql(
        "SELECT min(tiny), count(tiny), min(big), count(big), avg(v), max(v), count(v), max(t) "
        "FROM extremes"
    ).first()
    assert found is not None
    assert tuple(found) == (-128, 5, -(2**63), 5, 4.0, 7.0, 3, _FAR.item()), found


def _write_extremes_alone(place: Place, repository: Repository) -> None:
    put(repository, _EXTREMES, dims=["x"], variables=_EXTREMES.column_names[1:])


# -- files


def _write_files(place: Place) -> None:
    folder = Path(place.files)
    if any(folder.iterdir()):  # those of the other repository
        return
    for part in range(NUM_FILES):
        random = np.random.default_rng(part)
        values = random.integers(0, 1000, (2, 300, 400)).astype("f4")
        data = xr.Dataset({"v": (("t", "y", "x"), values)}, {"t": [2 * part, 2 * part + 1]})
        chunks = {"v": {"chunksizes": (1, 100, 400), "zlib": True, "complevel": 1}}
        data.to_netcdf(folder / f"{part}.nc", encoding=chunks, engine="h5netcdf")


def _begin_files(place: Place, repository: Repository) -> None:
    _write_files(place)
    session = repository.writable_session("main")
    zarr.create_group(session.store, attributes={"title": "of files"})
    session.commit("a group")


def _ingest_options(mode: Any) -> dict[str, Any]:
    options = {"concat_dim": "t", "mode": mode, "append": True, "group": "files"}
    return options | ({"chunks": {"t": 3, "y": 150}} if mode == "native" else {})


def _ingest(mode: Any) -> Any:
    def on_spark(spark: SparkSession, place: Place, repository: Repository) -> None:
        ingest(spark, f"{place.files}/*.nc", repository, **_ingest_options(mode))

    return on_spark


def _ingest_alone(mode: Any) -> Any:
    def alone(place: Place, repository: Repository) -> None:
        ingest_local(f"{place.files}/*.nc", repository, **_ingest_options(mode))

    return alone


def _begin_append(mode: Any) -> Any:
    def begin(place: Place, repository: Repository) -> None:
        _write_files(place)
        ingest_local(f"{place.files}/[01].nc", repository, **_ingest_options(mode))

    return begin


_REGIONS = (_begin_regions, _regions, _regions_alone)
_NATIVE = (_begin_files, _ingest("native"), _ingest_alone("native"))
_VIRTUAL = (_begin_files, _ingest("virtual"), _ingest_alone("virtual"))
_APPENDED = (_begin_append("native"), _ingest("native"), _ingest_alone("native"))
_REFERRED = (_begin_append("virtual"), _ingest("virtual"), _ingest_alone("virtual"))

JOBS = {
    "regions": Job(*_REGIONS, again_is_new=True),
    "dataset": Job(_begin_dataset, _append_dataset, _append_dataset_alone),
    "table": Job(_begin_table, _append_table, _append_table_alone),
    "extremes": Job(_begin_extremes, _write_extremes, _write_extremes_alone, HANDED_OVER),
    "native": Job(*_NATIVE),
    "virtual": Job(*_VIRTUAL, point=HANDED_OVER),
    "native append": Job(*_APPENDED),
    # Tasks write the manifests; a fault meets them, or the tasks before.
    "regions, chunks lost": Job(*_REGIONS, is_reduced=True, again_is_new=True),
    "regions, manifests lost": Job(*_REGIONS, MANIFEST, is_reduced=True, again_is_new=True),
    "native append, manifests lost": Job(*_APPENDED, MANIFEST, is_reduced=True),
    "virtual append, manifests lost": Job(*_REFERRED, MANIFEST, is_reduced=True),
}
