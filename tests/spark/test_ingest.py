"""Ingests with Spark against xarray's own reading of the same files, and against one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import icefloe
from icefloe import AlreadyExistsError, InvalidInputError, Repository
from icefloe.credentials import LocalFileSystemAccess
from icefloe.spark import ingest
from icefloe.virtual import ingest_local
from tests.spark.connect import SECONDS, run_connect_program
from tests.spark.versions import SPARK_VERSION
from tests.virtual.datasets import (
    FORMATS,
    NAMES,
    check,
    dataset,
    expected,
    make_unreadable,
    read,
    to_h5netcdf,
    to_netcdf4,
)
from tests.virtual.reference_sets import references_to, write_json, write_parquet
from tests.virtual.test_grib import at, write_grib
from tests.virtual_sources import config_of

h5py: Any = pytest.importorskip("h5py", reason="h5py is an optional dependency")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


def make_repository(folder: Path, name: str = "repository") -> Repository:
    """One whose references may point at files of the test."""
    files = icefloe.local_filesystem_store(str(folder))
    config = config_of([icefloe.VirtualChunkContainer(f"file://{folder}/", files)])
    access = {f"file://{folder}/": LocalFileSystemAccess}
    storage = icefloe.local_filesystem_storage(folder / name, durable=False)
    return Repository.create(storage, config, access)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path)


def files(folder: Path, parts: range = range(4)) -> list[Path]:
    paths = [folder / f"{NAMES[part % 4]}{part}.nc" for part in parts]
    for part, path in zip(parts, paths, strict=True):
        to_netcdf4(dataset(part), path)
    return paths


def contents(repository: Repository, **options: Any) -> Any:
    return read(repository.readonly_session("main").store, **options)


def history(repository: Repository) -> list[str]:
    return [entry.id for entry in repository.ancestry(branch="main")]


@pytest.mark.parametrize("mode", ["native", "virtual"])
@pytest.mark.parametrize("kind", FORMATS)
def test_files_of_every_format_become_what_xarray_reads(
    spark: SparkSession, tmp_path: Path, repository: Repository, kind: str, mode: Any
) -> None:
    suffix, write, options = FORMATS[kind]
    paths = [tmp_path / f"{name}{suffix}" for name in NAMES]
    for part, path in enumerate(paths):
        write(dataset(part), path)
    pattern = str(tmp_path / f"*{suffix}")
    report = ingest(spark, pattern, repository, concat_dim="time", mode=mode)
    assert (report.files_added, report.files_skipped, report.files_failed) == (4, 0, 0)
    assert history(repository)[0] == report.snapshot_id
    assert len(history(repository)) == 2
    check(contents(repository), expected(paths, **options))
    session = repository.readonly_session("main")
    locations = session.all_virtual_chunk_locations()
    assert bool(locations) == (mode == "virtual") == (report.refs_written > 0)
    assert (report.chunks_written > 0) == (report.bytes_written > 0)
    if mode == "native":
        assert report.chunks_written > 0
        return
    alone = make_repository(tmp_path, "alone")
    ingest_local(pattern, alone, concat_dim="time", mode=mode)
    assert sorted(locations) == sorted(alone.readonly_session("main").all_virtual_chunk_locations())


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_sets_of_references_become_what_xarray_reads(
    spark: SparkSession, tmp_path: Path, mode: Any
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "sets").mkdir()
    repository = make_repository(tmp_path / "data", "../repository")  # which covers no set
    paths = [tmp_path / "data" / f"{part}.nc" for part in range(3)]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part, has_text=False), path)
        refs = references_to(path, inline_every=2 * part)
        if part == 2:
            write_parquet(tmp_path / "sets" / "2.parq", refs)
        else:
            write_json(tmp_path / "sets" / f"{part}.json", refs)
    pattern = str(tmp_path / "sets" / "?.*")
    report = ingest(spark, pattern, repository, concat_dim="time", mode=mode)
    assert (report.files_added, report.files_failed) == (3, 0)
    check(contents(repository), expected(paths))
    locations = repository.readonly_session("main").all_virtual_chunk_locations()
    assert set(locations) == ({path.as_uri() for path in paths} if mode == "virtual" else set())


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_appending_adds_new_files_and_running_again_adds_nothing(
    spark: SparkSession, tmp_path: Path, repository: Repository, mode: Any
) -> None:
    options: dict[str, Any] = {"group": "obs/daily", "mode": mode, "append": True}
    if mode == "native":
        options["chunks"] = {"time": 4}  # so that appending starts inside a chunk
    pattern = str(tmp_path / "*.nc")
    paths = files(tmp_path, range(2))
    first = ingest(spark, pattern, repository, concat_dim="time", **options)
    paths += files(tmp_path, range(2, 5))
    frame = spark.createDataFrame([(str(path),) for path in reversed(paths)], "location string")
    second = ingest(spark, frame, repository.storage.url, concat_dim="time", **options)
    check(contents(repository, group="obs/daily"), expected(paths))
    make_unreadable(paths[1])  # nobody looks into it again
    third = ingest(spark, pattern, repository, concat_dim="time", **options)
    assert [report.files_added for report in (first, second, third)] == [2, 3, 0]
    assert [report.files_skipped for report in (first, second, third)] == [0, 2, 5]
    assert third.snapshot_id is None
    assert history(repository)[:2] == [second.snapshot_id, first.snapshot_id]


def test_official_icechunk_reads_the_result(
    spark: SparkSession, tmp_path: Path, repository: Repository
) -> None:
    icechunk = pytest.importorskip("icechunk", reason="official icechunk needs Python 3.12")
    paths = files(tmp_path, range(3))
    ingest(spark, [str(path) for path in paths], repository, group="native", concat_dim="time")
    ingest(spark, paths, repository, group="virtual", concat_dim="time", mode="virtual")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    access = {f"file://{tmp_path}/": icechunk.credentials.LocalFileSystemAccess}
    official = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    store = official.readonly_session("main").store
    for group in ("native", "virtual"):
        check(read(store, group=group), expected(paths))


def test_files_that_do_not_fit_are_named(
    spark: SparkSession, tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, range(3))
    broken = tmp_path / "broken.nc"
    broken.write_bytes(paths[0].read_bytes()[:300])
    narrow = tmp_path / "narrow.nc"
    to_h5netcdf(dataset(7).isel(x=slice(0, 5)), narrow)
    before = history(repository)
    pattern = str(tmp_path / "*.nc")
    with pytest.raises(InvalidInputError, match=r"2 files cannot be ingested") as raised:
        ingest(spark, pattern, repository, concat_dim="time")
    assert broken.as_uri() in str(raised.value)
    assert narrow.as_uri() in str(raised.value)
    assert history(repository) == before
    report = ingest(spark, pattern, repository, concat_dim="time", on_error="skip")
    assert (report.files_added, report.files_failed) == (3, 2)
    assert {problem.location for problem in report.problems} == {broken.as_uri(), narrow.as_uri()}
    assert all(problem.reason for problem in report.problems)
    check(contents(repository), expected(paths))
    with pytest.raises(AlreadyExistsError, match="append=True"):
        ingest(spark, pattern, repository, concat_dim="time")


def test_a_file_damaged_inside_stops_the_job_and_the_next_run_starts_anew(
    spark: SparkSession, tmp_path: Path, repository: Repository
) -> None:
    # Large enough that the scan, which compares small variables, does not read it.
    rng = np.random.default_rng(1)
    paths = [tmp_path / "b.nc", tmp_path / "a.nc"]
    for part, path in enumerate(paths):
        data = dataset(part)
        data["large"] = (("time", "band"), rng.integers(0, 9, (3, 20_000)).astype("i4"))
        to_netcdf4(data, path, large={"zlib": True, "chunksizes": (1, 20_000)})
    before = history(repository)
    good = paths[1].read_bytes()
    with h5py.File(paths[1]) as file:
        chunk = file["large"].id.get_chunk_info(1)
    bad = bytearray(good)
    bad[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\xff" * chunk.size
    paths[1].write_bytes(bytes(bad))
    options: dict[str, Any] = {"concat_dim": "time", "append": True}
    with pytest.raises(InvalidInputError, match=r"a\.nc: 'large' cannot be read"):
        ingest(spark, paths, repository, **options)
    assert history(repository) == before
    other = make_repository(tmp_path, "other")
    report = ingest(spark, paths, other, on_error="skip", **options)
    assert (report.files_added, report.files_failed) == (1, 1)
    assert report.problems[0].location == paths[1].as_uri()
    check(contents(other), expected(paths[:1]))
    paths[1].write_bytes(good)
    assert ingest(spark, paths, repository, **options).files_added == 2
    check(contents(repository), expected(paths))


def test_a_repository_without_a_container_takes_no_references(
    spark: SparkSession, tmp_path: Path
) -> None:
    storage = icefloe.local_filesystem_storage(tmp_path / "repository", durable=False)
    repository = Repository.create(storage)
    with pytest.raises(InvalidInputError, match=r"no virtual chunk container covers .*c0\.nc"):
        ingest(spark, files(tmp_path, range(1)), repository, mode="virtual")
    assert len(history(repository)) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sources": 7}, "sources is a int"),
        ({"sources": []}, "no sources"),
        ({"sources": ["a.nc", None]}, r"sources\[1\] is None"),
        ({"sources": "/nowhere/*.nc"}, "no file matches"),
        ({"repository": 7}, "repository is 7"),
        ({"group": None}, "group is None"),
        ({"branch": ""}, "branch is ''"),
        ({"concat_dim": 3}, "concat_dim is 3"),
        ({"variables": []}, r"variables is \[\]"),
        ({"chunks": {"time": 0}}, "chunks is"),
        ({"chunks": {"time": 2}, "mode": "virtual"}, "chunks cannot be chosen"),
        ({"mode": "copy"}, "mode is 'copy', expected 'native' or 'virtual'"),
        ({"append": "yes"}, "append is 'yes'"),
        ({"on_error": "ignore"}, "on_error is 'ignore', expected 'fail', 'skip' or 'quarantine'"),
        ({"message": 3}, "message is 3"),
    ],
)
def test_bad_input_is_refused_before_a_job_starts(
    repository: Repository, given: dict[str, Any], message: str
) -> None:
    arguments = {"sources": "*.nc", "repository": repository, **given}
    nothing: Any = None  # no Spark is needed to say no
    with pytest.raises(InvalidInputError, match=message):
        ingest(nothing, arguments.pop("sources"), arguments.pop("repository"), **arguments)


# The lowest xarray warns of this whenever it decodes a time difference, and GRIB has steps.
@pytest.mark.filterwarnings("ignore:In a future version, xarray will not decode:FutureWarning")
@pytest.mark.timeout(2 * SECONDS)
def test_grib_files(spark: SparkSession, tmp_path: Path, repository: Repository) -> None:
    for day in (3, 1, 2):
        messages = [at(20200100 + day, hour) for hour in range(0, day * 6, 6)]
        write_grib(tmp_path / f"{9 - day}.grib", messages)
    report = ingest(spark, str(tmp_path / "*.grib"), repository)
    assert (report.files_added, report.files_failed) == (3, 0)
    assert ingest(spark, str(tmp_path / "*.grib"), repository, append=True).snapshot_id is None
    local = make_repository(tmp_path, "local")
    ingest_local([str(tmp_path / "*.grib")], local)
    found, expected = contents(repository), contents(local)
    assert found["t2m"].shape == (6, 4, 6)
    assert found.identical(expected)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_ingest_through_spark_connect(tmp_path: Path, repository: Repository) -> None:
    pytest.importorskip("grpc", reason="Spark Connect is an optional dependency")
    paths = files(tmp_path, range(2))
    url = repository.storage.url
    found = run_connect_program("connect_ingest_program.py", url, str(tmp_path / "*.nc"))
    kind, native, virtual = found
    assert kind.startswith("pyspark.sql.connect")
    assert native == [2, True, False]
    assert virtual[0] == 2
    assert virtual[2] is True
    for group in ("native", "virtual"):
        check(contents(repository, group=group), expected(paths))


def test_the_public_call_is_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    paths = [tmp_path / "files" / f"{name}.nc" for name in "ab"]
    paths[0].parent.mkdir()
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    reports = [
        icefloe.ingest(paths, tmp_path / kind, engine=kind, concat_dim="time", mode="virtual")
        for kind in ("local", "spark")
    ]
    assert reports[0].refs_written == reports[1].refs_written > 0
    access = {paths[0].parent.as_uri() + "/": LocalFileSystemAccess}
    for kind in ("local", "spark"):
        storage = icefloe.local_filesystem_storage(str(tmp_path / kind))
        check(contents(Repository.open(storage, None, access)), expected(paths))


_TRACEBACKS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
"""A setting that workers are started with: where it has another value, Spark starts new ones."""


@pytest.mark.skipif(SPARK_VERSION < (4, 0), reason="workers of Spark 3.5 import pandas themselves")
@pytest.mark.parametrize("num_tasks", [None, 2])  # files are scanned by the driver, or by tasks
def test_tasks_copy_values_without_pandas(
    spark: SparkSession, tmp_path: Path, repository: Repository, num_tasks: int | None
) -> None:
    def if_loaded(name: str, batches: Iterator[Any]) -> Iterator[Any]:  # no import, as it is nested
        yield from (batch for batch in batches if name in sys.modules)

    def count_workers(name: str) -> int:
        one_each = spark.range(0, 2, 1, 2)
        return one_each.mapInArrow(partial(if_loaded, name), "id long").count()

    files(tmp_path)
    before = spark.conf.get(_TRACEBACKS)
    spark.conf.set(_TRACEBACKS, str(before != "true").lower())
    try:
        pattern = str(tmp_path / "*.nc")
        ingest(spark, pattern, repository, concat_dim="time", num_tasks=num_tasks)
        assert count_workers("h5py") > 0  # these have done it
        assert count_workers("pandas") == 0
    finally:
        spark.conf.set(_TRACEBACKS, str(before))
