"""Files that come late, come again, or say nothing about their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe import (
    InvalidInputError,
    Repository,
    RepositoryConfig,
    in_memory_storage,
    local_filesystem_storage,
)
from icefloe.virtual import ingest_local, list_sources
from icefloe.virtual.ingest.run_ingest import PROBLEMS
from tests.virtual.datasets import check, dataset, expected, read, to_netcdf4

xr: Any = pytest.importorskip("xarray", reason="xarray is an optional dependency")
pytest.importorskip("h5py", reason="h5py is an optional dependency")
pytest.importorskip("netCDF4", reason="makes NetCDF files")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The data type:zarr.errors.UnstableSpecificationWarning",
    "ignore:Consolidated metadata:zarr.errors.ZarrUserWarning",
)


def files(folder: Path, count: int = 6) -> list[Path]:
    paths = [folder / f"part{part}.nc" for part in range(count)]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    return paths


def contents(repository: Repository, **options: Any) -> Any:
    return read(repository.readonly_session("main").store, **options)


def days(path: Path, first: int, values: Any, **coords: Any) -> Path:
    """A small file with one value per day."""
    time = first + np.arange(len(values))
    data = xr.Dataset({"v": (("time",), np.asarray(values))}, {"time": time, **coords})
    data.to_netcdf(path)
    return path


# -- inserting


@pytest.mark.parametrize(
    "rounds",
    [
        ([3, 4], [0, 1, 2, 5]),
        ([0, 5], [2], [1, 3], [4]),
        ([2], [1], [0]),
        ([0, 1, 4, 5], [2, 3]),
    ],
)
@pytest.mark.parametrize("chunks", [{"time": 3}, {"time": 4}, None])
def test_late_files_are_inserted_where_they_belong(
    tmp_path: Path, repository: Repository, rounds: Any, chunks: Any
) -> None:
    paths = files(tmp_path)
    for numbers in rounds:
        chosen = [paths[number] for number in numbers]
        report = ingest_local(
            chosen, repository, concat_dim="time", chunks=chunks, append=True, late="insert"
        )
        assert report.files_added == len(numbers)
    there = sorted(number for numbers in rounds for number in numbers)
    check(contents(repository), expected([paths[number] for number in there]))
    again = ingest_local(paths[1], repository, concat_dim="time", append=True, late="insert")
    assert again.snapshot_id is None or 1 not in there


@pytest.mark.parametrize(("chunk", "is_moved"), [(3, False), (2, True)])
def test_whole_chunks_only_get_another_index(tmp_path: Path, chunk: int, is_moved: bool) -> None:
    for first, name in ((0, "a"), (12, "c"), (6, "b")):
        days(tmp_path / f"{name}.nc", first, np.arange(float(first), first + 3.0))
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    place = tmp_path / "repository"
    repository = Repository.create(local_filesystem_storage(place), config)
    options: dict[str, Any] = {"concat_dim": "time", "chunks": {"time": chunk}, "append": True}
    ingest_local([tmp_path / "a.nc", tmp_path / "c.nc"], repository, **options)

    def objects() -> int:
        return sum(1 for _ in (place / "chunks").iterdir())

    before = objects()
    report = ingest_local(tmp_path / "b.nc", repository, late="insert", **options)
    np.testing.assert_array_equal(contents(repository).v, [0, 1, 2, 6, 7, 8, 12, 13, 14])
    others = 7  # the time, the columns of the ledger
    assert (objects() - before - others > 1) == is_moved
    assert is_moved or report.chunks_written == 1


@pytest.mark.parametrize("rounds", [([1, 4], [2, 3], [0, 5]), ([5], [0])])
def test_references_are_inserted_too(tmp_path: Path, repository: Repository, rounds: Any) -> None:
    paths = files(tmp_path)
    for numbers in rounds:
        chosen = [paths[number] for number in numbers]
        ingest_local(
            chosen, repository, concat_dim="time", mode="virtual", append=True, late="insert"
        )
    there = sorted(number for numbers in rounds for number in numbers)
    check(contents(repository), expected([paths[number] for number in there]))


def test_late_files_are_refused_by_name_unless_asked_for(
    tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, 3)
    ingest_local([paths[0], paths[2]], repository, concat_dim="time")
    with pytest.raises(InvalidInputError, match=r"part1.nc.*start before the end.*late='insert'"):
        ingest_local(paths[1], repository, concat_dim="time", append=True)


def test_what_a_late_file_lacks_is_missing(tmp_path: Path, repository: Repository) -> None:
    paths = files(tmp_path, 3)
    xr.open_dataset(paths[1]).load().drop_vars("plain").to_netcdf(tmp_path / "poor.nc")
    options: dict[str, Any] = {"concat_dim": "time", "chunks": {"time": 2}}
    ingest_local([paths[0], paths[2]], repository, **options)
    ingest_local(tmp_path / "poor.nc", repository, append=True, late="insert", **options)
    found = contents(repository)
    wanted = expected(paths)
    xr.testing.assert_equal(found.packed, wanted.packed)
    assert np.isnan(found.plain[3:6]).all()
    xr.testing.assert_equal(found.plain[6:], wanted.plain[6:])


def test_a_late_file_never_overwrites(tmp_path: Path, repository: Repository) -> None:
    days(tmp_path / "a.nc", 0, [1.0, 2.0, 3.0, 4.0])
    days(tmp_path / "b.nc", 1, [9.0, 9.0])
    ingest_local(tmp_path / "a.nc", repository, concat_dim="time")
    with pytest.raises(InvalidInputError, match=r"b\.nc: 'v' has values at its place already"):
        ingest_local(tmp_path / "b.nc", repository, concat_dim="time", append=True, late="insert")
    np.testing.assert_array_equal(contents(repository).v, [1, 2, 3, 4])


def test_holes_of_a_grid_of_files_are_filled(tmp_path: Path, repository: Repository) -> None:
    whole = xr.Dataset(
        {"v": (("y", "x"), np.arange(24.0).reshape(4, 6))},
        {"y": np.arange(4), "x": np.arange(6)},
    )
    tiles = {}
    for y in (0, 2):
        for x in (0, 3):
            tiles[y, x] = tmp_path / f"{y}{x}.nc"
            whole.isel(y=slice(y, y + 2), x=slice(x, x + 3)).to_netcdf(tiles[y, x])
    options: dict[str, Any] = {"concat_dim": ["y", "x"], "chunks": {"y": 3, "x": 2}}
    first = [tiles[0, 0], tiles[0, 3], tiles[2, 0]]
    ingest_local(first, repository, **options)
    assert int(np.isnan(contents(repository).v).sum()) == 6
    ingest_local(tiles[2, 3], repository, append=True, late="insert", **options)
    xr.testing.assert_equal(contents(repository), whole)


@settings(max_examples=15, deadline=None)
@given(
    st.permutations(range(7)),
    st.lists(st.integers(1, 3), min_size=7, max_size=7),
    st.integers(1, 5),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.booleans(),
)
def test_any_order_of_arrival_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    order: list[int],
    lengths: list[int],
    chunk: int,
    batches: list[int],
    is_descending: bool,
) -> None:
    folder = tmp_path_factory.mktemp("arrival")
    edges = np.concatenate([[0], np.cumsum(lengths)])
    values = np.arange(edges[-1], dtype="f8") * 1.5
    time = np.arange(edges[-1])[::-1] if is_descending else np.arange(edges[-1])
    paths = []
    for part in range(7):
        span = slice(edges[part], edges[part + 1])
        data = xr.Dataset({"v": (("time",), values[span])}, {"time": time[span]})
        paths.append(folder / f"{part}.nc")
        data.to_netcdf(paths[-1])
    repository = Repository.create(in_memory_storage())
    at, sizes = 0, [*batches, 7]
    for size in sizes:
        chosen = [paths[number] for number in order[at : at + size]]
        at += size
        if chosen:
            ingest_local(
                chosen,
                repository,
                concat_dim="time",
                chunks={"time": chunk},
                append=True,
                late="insert",
                on_error="skip",
            )
    found = contents(repository)
    wanted = xr.Dataset({"v": (("time",), values)}, {"time": time})
    # Values that come one by one tell no direction: then they ascend.
    if found.time.size > 1 and found.time[0] < found.time[-1]:
        wanted = wanted.sortby("time")
    if found.time.size == wanted.time.size:
        xr.testing.assert_equal(found, wanted)
    else:
        assert is_descending


# -- replacing


@pytest.mark.parametrize("mode", ["native", "virtual"])
def test_files_that_changed_are_replaced_in_one_commit(
    tmp_path: Path, repository: Repository, mode: Any
) -> None:
    paths = files(tmp_path, 4)
    options: dict[str, Any] = {"concat_dim": "time", "mode": mode, "append": True}
    ingest_local(paths[:3], repository, **options)
    changed = xr.open_dataset(paths[1]).load()
    changed["packed"] += 1
    changed["plain"] *= 2
    paths[1].unlink()
    to_netcdf4(changed, paths[1])
    with pytest.raises(InvalidInputError, match=r"part1.nc: it has changed"):
        ingest_local(paths, repository, **options)
    kept = ingest_local(paths[:3], repository, changed="skip", **options)
    assert (kept.snapshot_id, kept.files_skipped) == (None, 3)
    report = ingest_local(paths, repository, changed="replace", **options)
    assert (report.files_added, report.files_skipped) == (2, 2)
    check(contents(repository), expected(paths))
    again = ingest_local(paths, repository, changed="replace", **options)
    assert (again.snapshot_id, again.files_skipped) == (None, 4)


def test_a_file_that_covers_other_places_now_is_not_replaced(
    tmp_path: Path, repository: Repository
) -> None:
    days(tmp_path / "a.nc", 0, [1.0, 2.0])
    days(tmp_path / "b.nc", 2, [3.0, 4.0])
    both = [tmp_path / "a.nc", tmp_path / "b.nc"]
    ingest_local(both, repository, concat_dim="time")
    days(tmp_path / "a.nc", 0, [1.0])
    with pytest.raises(InvalidInputError, match=r"a.nc: it has changed, and has other coordinates"):
        ingest_local(both, repository, concat_dim="time", append=True, changed="replace")


# -- the order of files


def nemo(folder: Path, name: str, value: float) -> Path:
    path = folder / name
    xr.Dataset(
        {"sst": (("time_counter", "x"), np.full((1, 2), value))},
        {"time_counter": np.zeros(1), "x": np.arange(2)},
    ).to_netcdf(path)
    return path


def test_files_follow_each_other_as_they_are_listed(tmp_path: Path, repository: Repository) -> None:
    paths = [nemo(tmp_path, f"{name}.nc", at) for at, name in enumerate("cab")]
    options: dict[str, Any] = {"concat_dim": "time_counter", "order": "listed"}
    ingest_local(paths[:2], repository, **options)
    ingest_local(paths[2], repository, append=True, **options)
    found = contents(repository, decode_times=False)
    np.testing.assert_array_equal(found.sst[:, 0], [0, 1, 2])
    np.testing.assert_array_equal(found.time_counter, [0, 0, 0])


def test_files_follow_each_other_by_a_part_of_their_names(
    tmp_path: Path, repository: Repository
) -> None:
    for number in (10, 9, 2):
        nemo(tmp_path, f"run_{number}_grid.nc", number)
    pattern = "run_{time_counter}_*.nc"
    ingest_local(f"{tmp_path}/*.nc", repository, order=pattern)
    np.testing.assert_array_equal(contents(repository, decode_times=False).sst[:, 1], [2, 9, 10])
    nemo(tmp_path, "run_11_grid.nc", 11)
    ingest_local(f"{tmp_path}/*.nc", repository, order=pattern, append=True)
    found = contents(repository, decode_times=False)
    np.testing.assert_array_equal(found.sst[:, 1], [2, 9, 10, 11])
    early = nemo(tmp_path, "run_3_grid.nc", 3)
    with pytest.raises(InvalidInputError, match=r"run_3_grid.nc: its name comes before"):
        ingest_local(early, repository, order=pattern, append=True)
    other = nemo(tmp_path, "other.nc", 3)
    with pytest.raises(InvalidInputError, match=r"other.nc: its name does not follow the pattern"):
        ingest_local(other, repository, order=pattern, append=True)


def test_names_place_files_along_several_dimensions(tmp_path: Path, repository: Repository) -> None:
    for step in range(2):
        for tile in range(3):
            data = np.full((1, 2), 10.0 * step + tile)
            xr.Dataset({"v": (("t", "x"), data)}).to_netcdf(tmp_path / f"s{step}-t{tile}.nc")
    ingest_local(f"{tmp_path}/*.nc", repository, order="s{t}-t{x}.nc")
    np.testing.assert_array_equal(
        contents(repository).v, [[0, 0, 1, 1, 2, 2], [10, 10, 11, 11, 12, 12]]
    )


@pytest.mark.parametrize("order", ["time", "{t}{t}", "listed"])
def test_an_order_that_says_nothing_is_refused(repository: Repository, order: str) -> None:
    with pytest.raises(InvalidInputError, match="order is"):
        ingest_local("a.nc", repository, order=order)


def test_sources_are_left_out_by_pattern(tmp_path: Path) -> None:
    for name in ("a.nc", "b.nc", "b_test.nc"):
        (tmp_path / name).touch()
    everything = f"{tmp_path}/*.nc"

    def names(exclude: Any) -> list[str]:
        found = list_sources(everything, exclude=exclude)
        return [location.rpartition("/")[2] for location in found]

    assert names("*_test.nc") == ["a.nc", "b.nc"]
    assert names(["a*", f"{tmp_path}/*_test.nc"]) == ["b.nc"]
    with pytest.raises(InvalidInputError, match="all 3 are excluded"):
        names("*")


# -- files that are set aside


def test_files_that_do_not_fit_are_kept_in_a_table_until_they_do(
    tmp_path: Path, repository: Repository
) -> None:
    days(tmp_path / "a.nc", 4, [5.0, 6.0])
    ingest_local(tmp_path / "a.nc", repository, concat_dim="time", group="g")
    days(tmp_path / "b.nc", 0, [1.0, 2.0])
    (tmp_path / "c.nc").write_bytes(b"nothing")
    options: dict[str, Any] = {"concat_dim": "time", "group": "g", "append": True}
    report = ingest_local(f"{tmp_path}/*.nc", repository, on_error="quarantine", **options)
    assert (report.files_added, report.files_failed) == (0, 2)
    assert report.snapshot_id is not None

    def table() -> dict[str, str]:
        store = repository.readonly_session("main").store
        found = zarr.open_group(store, path=f"g/{PROBLEMS}", mode="r")
        rows = zip(found["location"][:], found["reason"][:], strict=True)  # type: ignore[index,arg-type]
        return {str(location).rpartition("/")[2]: str(reason) for location, reason in rows}

    assert sorted(table()) == ["b.nc", "c.nc"]
    assert "start before the end" in table()["b.nc"]
    again = ingest_local(f"{tmp_path}/*.nc", repository, on_error="quarantine", **options)
    assert again.snapshot_id is None
    ingest_local(f"{tmp_path}/*.nc", repository, on_error="quarantine", late="insert", **options)
    assert sorted(table()) == ["c.nc"]
    np.testing.assert_array_equal(contents(repository, group="g").v, [1, 2, 5, 6])


# -- a function that changes files


def test_a_function_changes_files_before_they_are_brought_over(
    tmp_path: Path, repository: Repository
) -> None:
    paths = files(tmp_path, 3)

    def hook(data: Any) -> Any:
        assert data.packed.dtype == np.int16  # nothing is decoded
        part = int(data.encoding["source"][-4])
        return (
            data.drop_vars(["label", "area"])
            .isel(x=slice(None, None, -1), y=slice(1, 3))
            .rename(packed="t2m")
            .assign(part=("time", np.full(3, part)))
        )

    ingest_local(paths, repository, concat_dim="time", preprocess=hook, chunks={"time": 2})
    wanted = expected(paths).drop_vars(["label", "area"]).rename(packed="t2m")
    wanted = wanted.isel(x=slice(None, None, -1), y=slice(1, 3))
    wanted["part"] = ("time", np.repeat(np.arange(3), 3))
    xr.testing.assert_equal(contents(repository), wanted)


def test_a_function_makes_times_from_names(tmp_path: Path, repository: Repository) -> None:
    paths = [nemo(tmp_path, f"run_2001020{day}.nc", day) for day in (3, 1, 2)]

    def hook(data: Any) -> Any:
        day = np.datetime64(f"2001-02-{data.encoding['source'][-5:-3]}", "ns")
        return data.isel(time_counter=0, drop=True).expand_dims(time=[day])

    ingest_local(paths, repository, concat_dim="time", preprocess=hook)
    found = contents(repository)
    np.testing.assert_array_equal(found.sst[:, 0], [1, 2, 3])
    assert [str(day)[:10] for day in found.time.values] == [
        "2001-02-01", "2001-02-02", "2001-02-03",
    ]  # fmt: skip


def test_a_function_that_fails_is_told_with_the_file(
    tmp_path: Path, repository: Repository
) -> None:
    path = days(tmp_path / "a.nc", 0, [1.0])

    def fails(data: Any) -> Any:
        return data["nothing"]

    with pytest.raises(InvalidInputError, match=r"a.nc: preprocess failed: KeyError"):
        ingest_local(path, repository, preprocess=fails)
    with pytest.raises(InvalidInputError, match=r"a\.nc: preprocess returned a int"):
        ingest_local(path, repository, preprocess=lambda _: 3)
    with pytest.raises(InvalidInputError, match="preprocess is given in virtual mode"):
        ingest_local(path, repository, preprocess=fails, mode="virtual")
