"""A group goes on as it was made: in its mode and order, with its variables and chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe import ChunkType, InvalidInputError, Repository
from tests.cli.calling import here, told
from tests.virtual.datasets import check, dataset, expected, read, to_netcdf4

zarr: Any = pytest.importorskip("zarr")
Way = Callable[..., int]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four files that follow each other, in the folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    paths = [Path("files") / f"{part}.nc" for part in range(4)]
    for part, path in enumerate(paths):
        to_netcdf4(dataset(part), path)
    return paths


def opened(place: str = "weather") -> Repository:
    prefix = (Path.cwd() / "files").as_uri() + "/"
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    return Repository.open(icefloe.local_filesystem_storage(place), None, access)


def kinds(path: str = "packed", steps: int = 12) -> list[str]:
    session = opened().readonly_session("main")
    return [session.chunk_type(f"/{path}", (at, 0, 0)).name for at in range(steps)]


# -- the mode


def by_command(*sources: Path, mode: str | None = None) -> int:
    words = [] if mode is None else ["--mode", mode]
    return int(told("ingest", *sources, "weather", "--append", *words)["files_added"])


def by_call(*sources: Path, mode: Any = None) -> int:
    return icefloe.ingest(sources, "weather", append=True, mode=mode).files_added


def by_repository(*sources: Path, mode: Any = None) -> int:
    return icefloe.ingest(sources, opened(), append=True, mode=mode).files_added


def by_recipe(*sources: Path, mode: str | None = None) -> int:
    lines = [f"sources: {[*map(str, sources)]}", "repository: weather", "append: true"]
    recipe = "\n".join(lines if mode is None else [*lines, f"mode: {mode}"])
    return icefloe.ingest(**icefloe.load_recipe(recipe)).files_added


@pytest.mark.parametrize("way", [by_command, by_call, by_repository, by_recipe])
def test_references_are_followed_by_references(files: list[Path], way: Way) -> None:
    told("import", "--by-reference", *files[:2], "weather", "--concat-dim", "time")
    assert way(files[2]) == 1
    assert kinds(steps=9) == ["virtual"] * 9
    # Another mode has to be named.
    assert way(files[3], mode="native") == 1
    assert kinds()[:9] == ["virtual"] * 9
    assert "virtual" not in kinds()[9:]
    check(read(opened().readonly_session("main").store), expected(files))


@pytest.mark.parametrize("way", [by_command, by_call, by_recipe])
def test_copies_are_followed_by_copies(files: list[Path], way: Way) -> None:
    told("import", *files[:2], "weather", "--concat-dim", "time")
    assert way(files[2]) == 1
    assert "virtual" not in kinds(steps=9)


def test_the_mode_is_said(files: list[Path]) -> None:
    icefloe.ingest(files[:2], "weather", mode="virtual")
    [note] = icefloe.ingest(files[2], "weather", append=True).notes[-1:]
    assert note == "the group keeps its settings: mode='virtual'"
    # The first mode counts, not the last one.
    icefloe.ingest(files[3], "weather", append=True, mode="native")
    to_netcdf4(dataset(4), Path("files/4.nc"))
    icefloe.ingest("files/4.nc", "weather", append=True)
    assert kinds(steps=15)[9:] == ["inline"] * 3 + ["virtual"] * 3


def test_groups_of_earlier_versions_have_the_mode_of_their_chunks(files: list[Path]) -> None:
    icefloe.ingest(files[:2], "weather", mode="virtual")
    with opened().transaction("main", message="as earlier versions left it") as store:
        zarr.open_group(store, path=".icefloe/sources", mode="r+").attrs.clear()
    icefloe.ingest(files[2], "weather", append=True, mode="native")
    icefloe.ingest(files[3], "weather", append=True)
    assert kinds()[:6] + kinds()[9:] == ["virtual"] * 9
    assert "virtual" not in kinds()[6:9]


def test_a_group_below_does_not_make_the_mode(files: list[Path]) -> None:
    icefloe.ingest(files[:2], "weather", group="below", mode="virtual")
    with opened().transaction("main", message="as if written by hand") as store:
        del zarr.open_group(store, path="below", mode="r+")[".icefloe"]
    icefloe.ingest(files[:1], "weather", append=True)
    assert "virtual" not in kinds(steps=3)


def test_a_group_that_has_lost_its_references_asks(files: list[Path]) -> None:
    icefloe.ingest(files[:2], "weather", mode="virtual")
    repository = opened()
    icefloe.materialize(repository, message="copy them")
    assert set(kinds(steps=6)) == {"inline"}
    with pytest.raises(InvalidInputError, match="made with mode='virtual' and has no references"):
        icefloe.ingest(files[2], "weather", append=True)
    assert icefloe.ingest(files[2], "weather", append=True, mode="native").files_added == 1


def test_each_group_has_its_mode(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", mode="virtual")
    icefloe.ingest(files[0], "weather", group="a/b")
    icefloe.ingest(files[0], "weather", group="c", mode="virtual")
    for group, is_virtual in (("", True), ("a/b", False), ("c", True)):
        icefloe.ingest(files[1], "weather", group=group, append=True)
        path = f"{group}/packed".strip("/")
        kind = opened().readonly_session("main").chunk_type(f"/{path}", (3, 0, 0))
        assert (kind is ChunkType.virtual) == is_virtual


# -- everything else that holds for a group


def names(group: str = "") -> set[str]:
    root = zarr.open_group(opened().readonly_session("main").store, path=group, mode="r")
    return {name for name, _ in root.arrays()}


def test_variables_stay_the_chosen_ones(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", variables=["plain"])
    before = names()
    report = icefloe.ingest(files[1], "weather", append=True)
    assert names() == before
    assert "variables=['plain']" in report.notes[-1]
    icefloe.ingest(files[2], "weather", append=True, variables=["plain", "packed"])
    assert names() == before | {"packed", "x", "area"}


def test_files_without_the_chosen_variables_are_refused_with_the_reason(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", variables=["plain"])
    to_netcdf4(dataset(1).drop_vars("plain"), files[1])
    with pytest.raises(InvalidInputError, match=r"(?s)none of .*keeps its settings: variables"):
        icefloe.ingest(files[1], "weather", append=True)


def test_new_variables_get_the_chunks_of_the_group(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", chunks={"time": 2})
    to_netcdf4(dataset(1).assign(more=dataset(1).plain * 2), files[1])
    icefloe.ingest(files[1], "weather", append=True)
    store = opened().readonly_session("main").store
    assert zarr.open_array(store, path="more", mode="r").chunks == (2, 4)


def test_chunks_of_arrays_that_are_there_stay(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", chunks={"time": 2})
    with pytest.raises(InvalidInputError, match=r"chunks is \{'time': 3\}, but in the repository"):
        icefloe.ingest(files[1], "weather", append=True, chunks={"time": 3})
    to_netcdf4(dataset(1).assign(more=dataset(1).plain * 2), files[1])
    report = icefloe.ingest(files[1], "weather", append=True, chunks={"time": 3})
    assert any("'plain' has chunks of 2 along 'time', and keeps them" in n for n in report.notes)


def test_files_go_on_in_the_order_that_was_named(files: list[Path]) -> None:
    for part, path in enumerate(files):  # the coordinate tells nothing
        to_netcdf4(dataset(part).assign_coords(time=dataset(0).time), path)
    icefloe.ingest(files[:2], "weather", concat_dim="time", order="{time}.nc")
    icefloe.ingest(files[2:], "weather", append=True)
    found: Any = zarr.open_array(opened().readonly_session("main").store, path="whole", mode="r")
    wanted = np.concatenate([dataset(part).whole for part in range(4)])
    np.testing.assert_array_equal(found[:], wanted)


def colder(data: Any) -> Any:
    return data.assign(plain=data.plain - 1)


def test_a_preprocessed_group_wants_its_function(files: list[Path]) -> None:
    icefloe.ingest(files[0], "weather", preprocess=colder)
    with pytest.raises(InvalidInputError, match=r"was made with preprocess=.*\.colder, and this"):
        icefloe.ingest(files[1], "weather", append=True)
    assert icefloe.ingest(files[1], "weather", append=True, preprocess=colder).files_added == 1


def test_a_container_that_lacks_is_named_with_what_adds_it(files: list[Path]) -> None:
    icefloe.ingest(files[:2], "weather", mode="virtual")
    Path("elsewhere").mkdir()
    late = files[2].rename("elsewhere/2.nc")
    done = here("ingest", late, "weather", "--append")
    assert (done.returncode, "--add-containers" in done.stderr) == (2, True)
    assert told("ingest", late, "weather", "--append", "--add-containers")["refs_written"] > 0
