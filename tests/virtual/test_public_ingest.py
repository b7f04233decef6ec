"""`icefloe.ingest`: one line from files to a repository, given as an object or by its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe import InvalidInputError, Progress, Repository, RepositoryNotFoundError
from icefloe.virtual.sources import SourceAccess, containers_of
from tests.virtual.datasets import FORMATS, check, dataset, expected, read, to_netcdf4


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "files" / f"{name}.nc" for name in "ab"]
    paths[0].parent.mkdir()
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    return paths


def opened(place: Path, *prefixes: str) -> Repository:
    access = dict.fromkeys(prefixes, icefloe.credentials.LocalFileSystemAccess)
    return Repository.open(icefloe.local_filesystem_storage(str(place)), None, access)


def contents(repository: Repository, branch: str = "main") -> Any:
    return read(repository.readonly_session(branch).store)


@pytest.mark.parametrize("kind", ["netcdf4", "netcdf3", "zarr2"])
def test_an_empty_place_becomes_a_repository(tmp_path: Path, kind: str) -> None:
    suffix, write, options = FORMATS[kind]
    source = tmp_path / f"one{suffix}"
    write(dataset(0), source)
    report = icefloe.ingest(source, tmp_path / "weather")
    assert (report.files_added, report.files_failed) == (1, 0)
    check(contents(opened(tmp_path / "weather")), expected([source], **options))


def test_it_can_be_run_again(tmp_path: Path, files: list[Path]) -> None:
    place = str(tmp_path / "weather")
    icefloe.ingest(files[:1], place, message="first")
    report = icefloe.ingest(f"{files[0].parent}/*.nc", place, append=True, concat_dim="time")
    assert (report.files_added, report.files_skipped) == (1, 1)
    check(contents(opened(Path(place))), expected(files))
    assert icefloe.ingest(files, place, append=True).snapshot_id is None


def test_the_branch_is_part_of_the_address(tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "weather"
    repository = Repository.create(icefloe.local_filesystem_storage(str(place)))
    repository.create_branch("dev", repository.lookup_branch("main"))
    icefloe.ingest(files[0], f"{place}@dev")
    assert next(iter(repository.ancestry(branch="dev"))).message == "ingested 1 file"
    assert len(list(repository.ancestry(branch="main"))) == 1
    with pytest.raises(InvalidInputError, match="give one of them"):
        icefloe.ingest(files[0], f"{place}@dev", branch="main")


def test_a_new_repository_gets_the_containers_of_its_sources(
    tmp_path: Path, files: list[Path]
) -> None:
    place = tmp_path / "weather"
    report = icefloe.ingest(files, place, mode="virtual", concat_dim="time")
    assert report.refs_written > 0
    prefix = files[0].parent.as_uri() + "/"
    check(contents(opened(place, prefix)), expected(files))
    # Whoever opens it without saying so reads no file of this machine.
    with pytest.raises(icefloe.IcechunkError, match="authorize"):
        contents(opened(place))


def test_containers_are_added_on_request(tmp_path: Path, files: list[Path]) -> None:
    place = tmp_path / "weather"
    Repository.create(icefloe.local_filesystem_storage(str(place)))
    with pytest.raises(InvalidInputError, match="container"):
        icefloe.ingest(files, place, mode="virtual", concat_dim="time")
    icefloe.ingest(files[:1], place, mode="virtual", concat_dim="time", add_containers=True)
    # Appending reads virtual coordinates of the files it was told about.
    icefloe.ingest(files, place, mode="virtual", concat_dim="time", append=True)
    check(contents(opened(place, files[0].parent.as_uri() + "/")), expected(files))


def test_a_repository_object_is_used_as_it_is(files: list[Path]) -> None:
    repository = Repository.create(icefloe.in_memory_storage())
    told: list[Progress] = []
    icefloe.ingest(files, repository, concat_dim="time", progress=told.append)
    check(contents(repository), expected(files))
    assert [(one.done, one.total) for one in told if one.stage == "scanning files"] == [
        (1, 2),
        (2, 2),
    ]
    copied = [one for one in told if one.stage == "copying values"]
    assert copied[-1].done == copied[-1].total


def test_nothing_is_created_for_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file"):
        icefloe.ingest(tmp_path / "missing.nc", tmp_path / "weather")
    with pytest.raises(InvalidInputError, match="no file matches"):
        icefloe.ingest(str(tmp_path / "*.nc"), tmp_path / "weather")
    with pytest.raises(TypeError, match="concat_dims"):
        icefloe.ingest(tmp_path, tmp_path / "weather", concat_dims="t")  # type: ignore[call-arg]
    assert not (tmp_path / "weather").exists()


def test_a_repository_that_must_exist(tmp_path: Path, files: list[Path]) -> None:
    with pytest.raises(RepositoryNotFoundError):
        icefloe.ingest(files, tmp_path / "weathr", create=False)
    with pytest.raises(InvalidInputError, match="expected 'local' or 'spark'"):
        icefloe.ingest(files, tmp_path / "w", engine="dask")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="are for engine='spark'"):
        icefloe.ingest(files, tmp_path / "w", num_tasks=3)


@pytest.mark.parametrize(
    ("locations", "prefixes"),
    [
        (["file:///data/a.nc"], ["file:///data/"]),
        (["file:///data/x/a.nc", "file:///data/y/b.nc"], ["file:///data/"]),
        (["file:///data/x/a.nc", "file:///home/b.zarr/"], ["file:///data/x/", "file:///home/"]),
        (["s3://b/p/a.nc", "s3://b/p/q/c.nc", "s3://c/d.nc"], ["s3://b/p/", "s3://c/"]),
        (["https://host/f/a.nc", "gs://g/x.nc"], ["https://host/f/", "gs://g/"]),
    ],
)
def test_containers_are_as_narrow_as_the_folders_of_the_sources(
    locations: list[str], prefixes: list[str]
) -> None:
    access = SourceAccess()
    found = [one.container for one in containers_of(locations, access)]
    assert [one.url_prefix for one in found] == prefixes


def test_ingest_does_without_spark() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import icefloe; icefloe.ingest"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_misspelt_argument_is_refused_by_python(tmp_path: Path) -> None:
    misspelt: Any = {"concat_dimm": "time"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'concat_dimm'"):
        icefloe.ingest("*.nc", tmp_path, **misspelt)
    with pytest.raises(TypeError, match="unexpected keyword argument 'concat_dimm'"):
        icefloe.spark.ingest(misspelt, "*.nc", tmp_path, **misspelt)
