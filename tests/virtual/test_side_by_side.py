"""Ingests that others overtake: both are there, as if one had followed the other, and only chunks
on a seam are written twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import icefloe
from icefloe.storage.run import run_blocking
from icefloe.virtual.ingest.destination import Destination, read_ledger

Overtake = Callable[[Callable[[], Any]], None]


@pytest.fixture
def overtake(monkeypatch: pytest.MonkeyPatch) -> Overtake:
    """Lets something else happen right before the next commit, after all was written for it."""
    real = icefloe.Session.commit

    def before_commit(other: Callable[[], Any]) -> None:
        waiting = [other]

        def commit(self: icefloe.Session, *args: Any, **options: Any) -> str:
            if waiting:
                waiting.pop()()
            return real(self, *args, **options)

        monkeypatch.setattr(icefloe.Session, "commit", commit)

    return before_commit


def write_file(folder: Path, first: int, steps: int = 2, name: str = "t2m") -> str:
    """A file with some steps from `first` on, that has them in its values."""
    time = np.arange(first, first + steps)
    noise = [np.random.default_rng(at).uniform(0, 0.5, 300) for at in time]
    values = time[:, None] + np.array(noise)
    dataset = xr.Dataset({name: (("time", "x"), values)}, {"time": time, "x": np.arange(300)})
    path = folder / f"{name}-{first}.nc"
    dataset.to_netcdf(path)
    return str(path)


def open_repo(folder: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(folder / "repo"))


def values_of(folder: Path, group: str = "g", name: str = "t2m") -> list[int]:
    top: Any = zarr.open_group(
        open_repo(folder).readonly_session("main").store, path=group, mode="r"
    )
    values = np.floor(top[name][:])
    assert (values == values[:, :1]).all()
    assert values[:, 0].tolist() == top["time"][:].tolist()
    return [int(value) for value in values[:, 0]]


def num_chunk_objects(folder: Path) -> int:
    return len(run_blocking(open_repo(folder).handle.driver.list("chunks/")))


def stored_bytes(folder: Path) -> int:
    return sum(
        one.size_bytes for one in run_blocking(open_repo(folder).handle.driver.list("chunks/"))
    )


def first_ingest(folder: Path, chunk: int, **more: Any) -> str:
    url = str(folder / "repo")
    config = {"concat_dim": "time", "group": "g", "chunks": {"time": chunk}}
    icefloe.ingest([write_file(folder, 0, 4)], url, **{**config, **more})
    return url


def append(folder: Path, *files: str, **more: Any) -> icefloe.IngestReport:
    return icefloe.ingest(list(files), str(folder / "repo"), group="g", append=True, **more)


@pytest.mark.parametrize(
    ("chunk", "growth", "num_redone"),
    [
        (2, 2, 0),  # every chunk has one file
        (1, 3, 0),
        (4, 4, 0),  # chunks of two files, which stay together
        (3, 3, 1),  # the old end is inside of a chunk
        (4, 2, 2),  # no chunk holds the same files as before
    ],
)
def test_two_appends_to_one_group(
    tmp_path: Path, overtake: Overtake, chunk: int, growth: int, num_redone: int
) -> None:
    first_ingest(tmp_path, chunk)
    other = write_file(tmp_path, 10, growth)
    others: list[icefloe.IngestReport] = []
    overtake(lambda: others.append(append(tmp_path, other)))
    before, bytes_before = num_chunk_objects(tmp_path), stored_bytes(tmp_path)
    report = append(tmp_path, *(write_file(tmp_path, first) for first in (20, 22, 24, 26)))
    expected = [*range(4), *range(10, 10 + growth), *range(20, 28)]
    assert values_of(tmp_path) == expected
    assert (report.tries, report.files_added) == (2, 4)
    assert (report.chunks_redone > 0) == (num_redone > 0)
    if num_redone < 2:
        assert report.chunks_redone == num_redone
    num_theirs = -(-(4 + growth) // chunk) - 4 // chunk
    assert num_chunk_objects(tmp_path) == (
        before + num_theirs + report.chunks_written + report.chunks_redone
    )
    copied = others[0].bytes_written + report.bytes_written + report.bytes_redone
    assert stored_bytes(tmp_path) - bytes_before == copied
    assert (report.bytes_redone > 0) == (num_redone > 0)
    session = open_repo(tmp_path).readonly_session("main")
    assert len(read_ledger(session.store, "g").versions) == 6


def test_references_are_placed_again(tmp_path: Path, overtake: Overtake) -> None:
    url = str(tmp_path / "repo")
    given: dict[str, Any] = {"concat_dim": "time", "group": "g", "mode": "virtual"}
    icefloe.ingest([write_file(tmp_path, 0)], url, add_containers=True, **given)
    other = write_file(tmp_path, 10)
    overtake(lambda: append(tmp_path, other))
    report = append(tmp_path, write_file(tmp_path, 20), write_file(tmp_path, 22))
    assert (report.tries, report.chunks_redone) == (2, 0)
    session = open_repo(tmp_path).readonly_session("main")
    top: Any = zarr.open_group(session.store, path="g", mode="r")
    assert top["time"][:].tolist() == [0, 1, 10, 11, 20, 21, 22, 23]


def test_two_first_ingests_into_different_groups(tmp_path: Path, overtake: Overtake) -> None:
    url = str(tmp_path / "repo")
    files = write_file(tmp_path, 0), write_file(tmp_path, 10)
    overtake(lambda: icefloe.ingest([files[0]], url, group="a/b", concat_dim="time"))
    report = icefloe.ingest([files[1]], url, group="a/c", concat_dim="time")
    assert values_of(tmp_path, "a/b") == [0, 1]
    assert values_of(tmp_path, "a/c") == [10, 11]
    assert report.chunks_redone == 0


def test_two_that_create_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "repo")
    files = write_file(tmp_path, 0), write_file(tmp_path, 10)
    real, waiting = Destination.settle, [lambda: icefloe.ingest([files[0]], url, group="a")]

    def settle(self: Destination) -> icefloe.Repository:
        if waiting:
            waiting.pop()()
        return real(self)

    monkeypatch.setattr(Destination, "settle", settle)
    report = icefloe.ingest([files[1]], url, group="b")
    assert report.tries == 2
    assert values_of(tmp_path, "a") == [0, 1]
    assert values_of(tmp_path, "b") == [10, 11]


def test_two_first_ingests_into_one_group(tmp_path: Path, overtake: Overtake) -> None:
    url = str(tmp_path / "repo")
    files = write_file(tmp_path, 0), write_file(tmp_path, 10)
    overtake(lambda: icefloe.ingest([files[0]], url, group="g", concat_dim="time"))
    with pytest.raises(icefloe.AlreadyExistsError, match="append to it"):
        icefloe.ingest([files[1]], url, group="g", concat_dim="time")
    icefloe.ingest([files[1]], url, group="g", append=True)
    assert values_of(tmp_path) == [0, 1, 10, 11]


def test_both_may_append_to_a_group_that_is_not_there(tmp_path: Path, overtake: Overtake) -> None:
    files = write_file(tmp_path, 0), write_file(tmp_path, 10)
    overtake(lambda: append(tmp_path, files[0], concat_dim="time"))
    report = append(tmp_path, files[1], concat_dim="time")
    assert values_of(tmp_path) == [0, 1, 10, 11]
    assert (report.tries, report.chunks_redone) == (2, 0)


def test_two_variables_into_one_group(tmp_path: Path, overtake: Overtake) -> None:
    files = write_file(tmp_path, 0), write_file(tmp_path, 0, name="rain")
    overtake(lambda: append(tmp_path, files[0], concat_dim="time"))
    report = append(tmp_path, files[1], concat_dim="time")
    assert values_of(tmp_path, name="t2m") == values_of(tmp_path, name="rain") == [0, 1]
    assert report.tries == 2


def test_files_that_the_other_run_brought_are_known(tmp_path: Path, overtake: Overtake) -> None:
    first_ingest(tmp_path, 2)
    files = [write_file(tmp_path, first) for first in (10, 12, 14)]
    overtake(lambda: append(tmp_path, *files[:2]))
    report = append(tmp_path, *files)
    assert (report.files_added, report.files_skipped, report.tries) == (1, 2, 2)
    assert values_of(tmp_path) == [*range(4), *range(10, 16)]
    assert report.chunks_redone == 2  # those of the other's files
    path = write_file(tmp_path, 20)
    overtake(lambda: append(tmp_path, path))
    report = append(tmp_path, path)
    assert (report.snapshot_id, report.files_added, report.files_skipped) == (None, 0, 1)


def test_a_block_that_is_late_now(tmp_path: Path, overtake: Overtake) -> None:
    first_ingest(tmp_path, 2)
    late = write_file(tmp_path, 10)
    overtake(lambda: append(tmp_path, write_file(tmp_path, 20)))
    with pytest.raises(icefloe.InvalidInputError, match=r"t2m-10\.nc"):
        append(tmp_path, late)
    assert values_of(tmp_path) == [*range(4), 20, 21]
    overtake(lambda: append(tmp_path, write_file(tmp_path, 30)))
    append(tmp_path, late, late="insert")
    assert values_of(tmp_path) == [*range(4), 10, 11, 20, 21, 30, 31]


def test_others_may_be_first_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_ingest(tmp_path, 2)
    others = [write_file(tmp_path, first) for first in (14, 12, 10)]
    real = icefloe.Session.commit

    def commit(self: icefloe.Session, *args: Any, **options: Any) -> str:
        if others and len(others) < 10:
            path = others.pop()
            left, others[:] = others[:], []
            append(tmp_path, path)
            others[:] = left
        return real(self, *args, **options)

    monkeypatch.setattr(icefloe.Session, "commit", commit)
    report = append(tmp_path, write_file(tmp_path, 20), write_file(tmp_path, 22))
    assert values_of(tmp_path) == [*range(4), *range(10, 16), *range(20, 24)]
    assert (report.tries, report.chunks_redone) == (4, 0)
    assert "tries: 4, 0 chunks (0 B) written again" in str(report)
