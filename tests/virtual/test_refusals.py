"""What an ingest refuses: the reason is true, the name that was meant is said, nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import icefloe
from icefloe import AlreadyExistsError, InvalidInputError, RefNotFoundError, Repository
from tests.cli.calling import here, told
from tests.virtual.datasets import dataset, to_h5netcdf, to_netcdf4

xr: Any = pytest.importorskip("xarray")
zarr: Any = pytest.importorskip("zarr")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Five files that follow each other, in the folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    paths = [Path(f"{part}.nc") for part in range(5)]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    return paths


def reason(*arguments: Any, **options: Any) -> str:
    """Why an ingest is refused: what is said about the one file, or all of the message."""
    with pytest.raises(InvalidInputError) as raised:
        icefloe.ingest(*arguments, **options)
    return str(raised.value)


def warmer(path: Path, part: int) -> None:
    data = dataset(part)
    data.plain.attrs["units"] = "km"
    to_netcdf4(data, path)


# -- reasons


def test_a_late_file_in_another_unit(files: list[Path]) -> None:
    icefloe.ingest([files[0], files[2], files[4]], "weather", concat_dim="time")
    warmer(files[1], 1)
    told = reason(files[1], "weather", append=True, late="insert")
    assert """variable 'plain' has units "km", the repository "m\"""" in told
    assert "cannot be written exactly" not in told
    # A file that fits is inserted, and the other one keeps its own reason.
    report = icefloe.ingest(
        [files[1], files[3]], "weather", append=True, late="insert", on_error="skip"
    )
    assert (report.files_added, report.files_failed) == (1, 1), report
    assert 'units "km"' in report.problems[0].reason


def test_late_times_that_have_no_value_in_the_units_of_the_group(files: list[Path]) -> None:
    icefloe.ingest([files[0], files[2]], "weather", concat_dim="time")
    data = dataset(1)
    shifted = data.assign_coords(time=data.time + np.timedelta64(7, "m"))
    to_netcdf4(shifted, files[1], time={"units": "minutes since 2001-01-01", "dtype": "i4"})
    told = reason(files[1], "weather", append=True, late="insert")
    assert "they cannot be written exactly in its type and units" in told


def other_type(data: Any) -> Any:
    return data.assign(whole=data.whole.astype("f8") + 0.5)


CHANGES: dict[str, tuple[Any, str]] = {
    "type": (other_type, "variable 'whole' has type f8, the repository i4"),
    "size": (lambda data: data.isel(y=slice(0, 3)), "size of y 3, the repository 4"),
    "values": (lambda data: data.assign(height=data.height + 1), "other values than the repos"),
    "dimensions": (
        lambda data: data.assign(plain=data.plain.transpose("y", "time")),
        "dimensions ('y', 'time'), the repository ('time', 'y')",
    ),
    "no coordinate": (lambda data: data.drop_vars("time"), "a coordinate, the repository has one"),
    "places": (
        lambda data: data.assign_coords(time=dataset(0).time),
        "at places that the repository fills already",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_one_file_is_compared_with_the_repository(files: list[Path], what: str) -> None:
    icefloe.ingest(files[0], "weather")
    change, wanted = CHANGES[what]
    data = change(dataset(1))
    encoding = {"time": {"units": "hours since 2001-01-01", "dtype": "i4"}}
    data.to_netcdf("odd.nc", encoding=encoding if "time" in data.variables else {})
    told = reason("odd.nc", "weather", append=True, concat_dim="time")
    assert wanted in told
    assert "other files" not in told
    assert told.startswith("1 file cannot be ingested (on_error='skip' leaves it out)")


def test_files_are_compared_with_each_other(files: list[Path]) -> None:
    warmer(files[1], 1)
    assert 'units "km", other files "m"' in reason(files, "weather")


def test_what_is_there_is_never_left_out(files: list[Path]) -> None:
    dataset(0).drop_vars("time").to_netcdf(files[0])
    icefloe.ingest(files[0], "weather", concat_dim="time")
    assert "the dimension in the repository has none" in reason(files[1], "weather", append=True)
    report = icefloe.ingest(files[1], "weather", append=True, on_error="skip")
    assert (report.snapshot_id, report.files_failed) == (None, 1)


def names(path: str, values: list[Any]) -> str:
    dtype = object if isinstance(values[0], str) else None
    coords = {"name": np.array(values, dtype)}
    xr.Dataset({"v": (("name",), np.arange(len(values)))}, coords).to_netcdf(path)
    return path


def test_text_and_numbers_along_one_dimension(files: list[Path]) -> None:
    texts = [names("a.nc", ["a", "b"]), names("e.nc", ["e", "f"])]
    numbers, late = names("n.nc", [1, 2]), names("c.nc", ["c", "d"])
    assert "n.nc: coordinate 'name' has numbers, other files text" in reason(
        [numbers, *texts], "weather"
    )
    icefloe.ingest(texts, "weather", concat_dim="name")
    assert "has numbers, the repository text" in reason(numbers, "weather", append=True)
    told = reason(late, "weather", append=True, late="insert")
    assert "only numbers and times can be inserted" in told


# -- names


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"concat_dim": "tiem"}, "concat_dim names 'tiem', a dimension that no file has; did you "),
        ({"concat_dim": "TIME"}, "did you mean 'time'?"),
        ({"chunks": {"tme": 4}}, "chunks names 'tme', a dimension that no file has; did you mean "),
        ({"chunks": {"depth": 4}}, "chunks names 'depth', a dimension that no file has; They have"),
        ({"variables": ["plain", "pakced"]}, "variables names 'pakced', a variable that no file "),
        ({"order": "{tiem}.nc"}, "order names 'tiem', a dimension that no file has; did you mean"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_unknown_names_are_said_with_the_nearest(
    files: list[Path], arguments: dict[str, Any], wanted: str, count: int
) -> None:
    assert wanted in reason(files[:count], "weather", **arguments)
    assert not Path("weather").exists()
    icefloe.ingest(files[2], "weather")
    assert wanted in reason(files[:count], "weather", append=True, **arguments)


def test_a_new_dimension_is_said(files: list[Path]) -> None:
    for part, path in enumerate(files[:2]):
        to_netcdf4(dataset(part).assign_coords(time=dataset(0).time), path)
    report = icefloe.ingest(files[:2], "weather", concat_dim="member", variables=["plain"])
    assert report.notes == (
        "no file has a dimension 'member': it is new, with one step for each file",
    )
    assert "note: no file has a dimension 'zeit'" in reason(files, "other", concat_dim="zeit")


# -- nothing is left


def test_a_refused_first_ingest_leaves_nothing(files: list[Path]) -> None:
    Path("bad.nc").write_bytes(b"something else")
    warmer(files[1], 1)
    reason("bad.nc", "weather")
    reason(files, "weather", mode="virtual")
    with pytest.raises(RefNotFoundError, match="no branch 'dev': weather has no repository yet"):
        icefloe.ingest(files[0], "weather", branch="dev")
    assert here("import", "bad.nc", "weather").returncode == 2
    assert icefloe.ingest("bad.nc", "weather", on_error="skip").files_failed == 1
    assert not Path("weather").exists()


def test_a_set_of_references_to_files_elsewhere_leaves_nothing(files: list[Path]) -> None:
    Path("data").mkdir()
    Path("sets").mkdir()
    Path("data/values").write_bytes(bytes(4_000_000))
    array = {"shape": [500_000], "chunks": [500_000], "dtype": "<f8", "compressor": None}
    rest = {"zarr_format": 2, "filters": None, "fill_value": 0, "order": "C"}
    references = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps({**array, **rest}),
        "v/0": [str(Path("data/values").absolute()), 0, 4_000_000],
    }
    Path("sets/one.json").write_text(json.dumps({"version": 1, "refs": references}))
    told = reason("sets/one.json", "weather", mode="virtual")
    assert f"no virtual chunk container covers {Path('data/values').absolute().as_uri()}" in told
    assert not Path("weather").exists()


def test_a_refused_ingest_saves_no_containers(files: list[Path]) -> None:
    told("init", "weather")
    warmer(files[1], 1)
    reason(files, "weather", mode="virtual", add_containers=True)
    storage = icefloe.local_filesystem_storage("weather")
    assert not Repository.open(storage).config.virtual_chunk_containers
    icefloe.ingest(files[2:], "weather", mode="virtual", add_containers=True)
    assert len(Repository.open(storage).config.virtual_chunk_containers or {}) == 1
    Path("more").mkdir()
    with h5py.File("more/a.nc", "w") as file:
        file["below/x"] = np.arange(3.0)
    icefloe.ingest(files[0], "weather", group="below")
    with pytest.raises(AlreadyExistsError, match="ingested by itself"):
        icefloe.ingest("more/a.nc", "weather", append=True, mode="virtual", add_containers=True)
    assert len(Repository.open(storage).config.virtual_chunk_containers or {}) == 1


def test_a_file_that_is_damaged_inside_can_be_left_out_later(files: list[Path]) -> None:
    noise = np.random.default_rng(0).random((9, 9999))
    with h5py.File("damaged.nc", "w") as file:
        values = file.create_dataset("v", data=noise, chunks=(3, 9999), compression=4)
        offset = values.id.get_chunk_info(1).byte_offset
    with Path("damaged.nc").open("r+b") as raw:
        raw.seek(offset + 10)
        raw.write(b"\xff" * 90)
    assert "damaged.nc: 'v' cannot be read" in reason("damaged.nc", "weather")
    # Values are read when the repository is there; it is empty, and counts as new.
    assert told("import", files[0], "weather")["files_added"] == 1
    assert here("import", files[0], "weather").returncode == 4


def test_quarantined_files_need_a_repository(files: list[Path]) -> None:
    Path("bad.nc").write_bytes(b"something else")
    icefloe.ingest("bad.nc", "weather", on_error="quarantine")
    assert told("log", "weather")[0]["message"] == "quarantined 1 file"


# -- groups


def shapes(place: str) -> dict[str, tuple[int, ...]]:
    repository = Repository.open(icefloe.local_filesystem_storage(place))
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    return {path: node.shape for path, node in root.members(None) if path.endswith("plain")}


def test_the_root_is_free_when_a_group_below_was_ingested(files: list[Path]) -> None:
    icefloe.ingest(files[:1], "weather", group="a/b")
    icefloe.ingest(files[:2], "weather")
    icefloe.ingest(files[:3], "weather", append=True)
    icefloe.ingest(files[:2], "weather", group="a", append=True)
    icefloe.ingest(files[:3], "weather", group="a/b", append=True)
    assert shapes("weather") == {"plain": (9, 4), "a/plain": (6, 4), "a/b/plain": (9, 4)}
    for group in ("", "a", "a/b"):
        with pytest.raises(AlreadyExistsError, match="append to it"):
            icefloe.ingest(files[3], "weather", group=group)


def test_the_root_is_free_when_a_group_below_was_written(files: list[Path]) -> None:
    repository = Repository.create(icefloe.local_filesystem_storage("weather"))
    with repository.transaction("main", message="by hand") as store:
        zarr.create_array(store, name="mine/plain", shape=(5,), dtype="f4")
    icefloe.ingest(files[:2], "weather")
    icefloe.ingest(files[:3], "weather", append=True)
    assert shapes("weather") == {"plain": (9, 4), "mine/plain": (5,)}


def test_attributes_that_a_group_has_stay(files: list[Path]) -> None:
    repository = Repository.create(icefloe.local_filesystem_storage("weather"))
    with repository.transaction("main", message="by hand") as store:
        zarr.open_group(store, mode="a").attrs.update({"title": "mine", "owner": "me"})
    icefloe.ingest(files[0], "weather")
    found = zarr.open_group(repository.readonly_session("main").store, mode="r").attrs.asdict()
    assert found == {**dataset(0).attrs, "title": "mine", "owner": "me"}


def test_groups_of_files_are_not_written_over_others(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", group="a")
    for name, path in (("group", "a/plain"), ("array", "a")):
        with h5py.File(f"{name}.nc", "w") as file:
            file[path] = np.arange(3.0)
        with pytest.raises(AlreadyExistsError, match="the group '/a' was ingested by itself"):
            icefloe.ingest(f"{name}.nc", "weather")
    with pytest.raises(AlreadyExistsError, match="'/a/plain' is an array"):
        icefloe.ingest(files[0], "weather", group="a/plain/b")
    assert shapes("weather") == {"a/plain": (3, 4)}


# -- what is said of what was done


def messages() -> list[str]:
    return [entry["message"] for entry in told("log", "weather")]


def test_messages_of_commits_count_truly(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", concat_dim="time")
    to_netcdf4(dataset(0).assign(whole=dataset(0).whole + 1), files[0])
    icefloe.ingest(files[0], "weather", append=True, changed="replace")
    to_netcdf4(dataset(0), files[0])
    icefloe.ingest(files[:3], "weather", append=True, changed="replace")
    for name in "xyz":
        Path(f"{name}.nc").write_bytes(b"bad")
    icefloe.ingest(["x.nc", "y.nc", "z.nc"], "weather", append=True, on_error="quarantine")
    icefloe.ingest([files[3], "x.nc"], "weather", append=True, on_error="quarantine")
    to_h5netcdf(dataset(4), Path("x.nc"))
    icefloe.ingest(["x.nc"], "weather", append=True, on_error="quarantine")
    assert messages()[-2::-1] == [
        "ingested 1 file",
        "replaced 1 file",
        "ingested 2 files, replaced 1 file",
        "quarantined 3 files",
        "ingested 1 file",
        "ingested 1 file",
    ]


def test_a_report_shows_itself(files: list[Path]) -> None:
    Path("bad.nc").write_bytes(b"bad")
    report = icefloe.ingest([files[0], "bad.nc"], "weather", on_error="skip")
    shown = repr(report)
    assert shown == str(report)
    assert shown.startswith(f"<icefloe.IngestReport>\ncommit: {report.snapshot_id}\n")
    assert "files: 1 added, 0 there already, 1 left out\n" in shown
    assert f"left out: {Path('bad.nc').absolute().as_uri()}: it starts with" in shown
    html = report._repr_html_()
    assert f">{report.snapshot_id}<" in html
    assert "1 added, 0 there already, 1 left out" in html
    again = icefloe.ingest(files[0], "weather", append=True)
    assert "commit: none, nothing had to change\nfiles: 0 added, 1 there" in repr(again)
    assert "written: 0 chunks (0 B), 0 references" in repr(again)


def test_the_command_line_counts_truly(files: list[Path]) -> None:
    Path("bad.nc").write_bytes(b"bad")
    first = here("ingest", files[0], "weather").stdout
    assert ": 1 file added, 0 there already.\n" in first
    again = here("ingest", files[0], "weather", "--append").stdout
    assert again == "Nothing had to change in weather: 1 file is in it.\n"
    skipped = here("ingest", "bad.nc", "weather", "--append", "--on-error", "skip").stdout
    assert skipped.startswith("Nothing was added to weather.\n  left out: ")


def test_a_name_of_a_repository_is_found(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert here("config", "add", "era5", str(tmp_path / "weather")).returncode == 0
    told("import", files[0], "era5")
    assert told("ingest", files[1], "era5", "--append", "--concat-dim", "time")["files_added"] == 1
    assert (Path("weather").exists(), Path("era5").exists()) == (True, False)
