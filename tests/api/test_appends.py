"""`AppendSolver`: blocks behind each other, without copying where chunks allow it, or a refusal
that names the array."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.storage.run import run_blocking

SOLVER = icefloe.AppendSolver(dim="time")


def create(storage: icefloe.Storage, spec: int = 2, length: int = 4) -> icefloe.Repository:
    """Coordinates in one chunk, an array with a chunk per two steps, sharded ones, and labels."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    session = repo.writable_session("main")
    top = zarr.create_group(session.store).create_group("g")
    many: dict[str, Any] = {"dtype": "<f8", "dimension_names": ["time", "x"]}
    top.create_array("time", shape=(length,), chunks=(99,), dtype="<i8", dimension_names=["time"])
    top.create_array("a", shape=(length, 3), chunks=(2, 2), **many)
    top.create_array("sharded", shape=(length, 3), chunks=(1, 3), shards=(2, 3), **many)
    top.create_array("x", shape=(3,), chunks=(3,), dtype="<i8", dimension_names=["x"])[:] = 1
    append(session, 0, range(length))
    session.commit("start")
    return repo


@pytest.fixture(params=[1, 2])
def repo(request: pytest.FixtureRequest) -> icefloe.Repository:
    return create(icefloe.in_memory_storage(), request.param)


def append(session: Any, length: int, values: Any, names: Any = ("time", "a", "sharded")) -> None:
    """Write values from `length` on; arrays become longer for it."""
    top: Any = zarr.open_group(session.store, path="g", mode="r+")
    for name in names:
        array = top[name]
        array.resize((length + len(values), *array.shape[1:]))
        block = np.array(values).reshape(-1, *(1,) * (array.ndim - 1))
        array[length:] = np.broadcast_to(block, (len(values), *array.shape[1:]))


def values_of(repo: Any, name: str = "a") -> list[float]:
    array: Any = zarr.open_array(repo.readonly_session("main").store, path=f"g/{name}", mode="r")
    values = np.asarray(array[:]).reshape(array.shape[0], -1)
    assert (values == values[:, :1]).all()
    return [float(value) for value in values[:, 0]]


def num_chunks(repo: icefloe.Repository) -> int:
    return len(run_blocking(repo.handle.driver.list("chunks/")))


def test_blocks_of_whole_chunks_move_without_copies(repo: icefloe.Repository) -> None:
    first, second = repo.writable_session("main"), repo.writable_session("main")
    append(first, 4, [10, 11])
    append(second, 4, [20, 21, 22, 23])
    first.commit("first")
    before = num_chunks(repo)
    second.commit("second", rebase_with=SOLVER)
    expected = [0, 1, 2, 3, 10, 11, 20, 21, 22, 23]
    assert all(values_of(repo, name) == expected for name in ("time", "a", "sharded"))
    assert num_chunks(repo) == before + 1  # the coordinates, in their one chunk
    parent = next(iter(repo.ancestry(branch="main"))).parent_id
    diff = repo.diff(from_snapshot_id=parent, to_branch="main")
    assert {tuple(at) for at in diff.updated_chunks["/g/a"]} == {
        (row, column) for row in (3, 4) for column in (0, 1)
    }


def test_small_arrays_are_joined_where_chunks_do_not_fit(repo: icefloe.Repository) -> None:
    first, second, third = (repo.writable_session("main") for _ in range(3))
    append(first, 4, [10])
    append(second, 4, [20, 21])
    append(third, 4, [30])
    first.commit("first")
    second.commit("second", rebase_with=SOLVER)
    third.commit("third", rebase_with=SOLVER)
    expected = [0, 1, 2, 3, 10, 20, 21, 30]
    assert all(values_of(repo, name) == expected for name in ("time", "a", "sharded"))


def test_a_rebase_keeps_the_session_open(repo: icefloe.Repository) -> None:
    late = repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other := repo.writable_session("main"), 4, [10, 11])
    other.commit("other")
    late.rebase(pickle.loads(pickle.dumps(SOLVER)))
    append(late, 8, [22])
    late.commit("late")
    assert values_of(repo) == [0, 1, 2, 3, 10, 11, 20, 21, 22]


def test_in_an_event_loop(repo: icefloe.Repository) -> None:
    async def run() -> None:
        late = await repo.writable_session_async("main")
        await asyncio.to_thread(append, late, 4, [20])
        other = await repo.writable_session_async("main")
        await asyncio.to_thread(append, other, 4, [10])
        await other.commit_async("other")
        await late.commit_async("late", rebase_with=SOLVER)

    asyncio.run(run())
    assert values_of(repo) == [0, 1, 2, 3, 10, 20]


def test_nobody_gets_it_unasked(repo: icefloe.Repository) -> None:
    late = repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other := repo.writable_session("main"), 4, [10, 11])
    other.commit("other")
    for solver in (icefloe.ConflictDetector(), icefloe.BasicConflictSolver()):
        with pytest.raises(icefloe.RebaseFailedError):
            late.commit("late", rebase_with=solver)
    assert values_of(repo) == [0, 1, 2, 3, 10, 11]
    late.commit("late", rebase_with=SOLVER)
    assert values_of(repo) == [0, 1, 2, 3, 10, 11, 20, 21]


def overwrite(session: icefloe.Session) -> None:
    array: Any = zarr.open_array(session.store, path="g/a", mode="r+")
    array[0] = 77


def overwrite_coordinate(session: icefloe.Session) -> None:
    array: Any = zarr.open_array(session.store, path="g/time", mode="r+")
    array[0] = -7


def describe(session: icefloe.Session) -> None:
    zarr.open_array(session.store, path="g/a", mode="r+").attrs["units"] = "m"


def create_member(session: icefloe.Session) -> None:
    group = zarr.open_group(session.store, path="g", mode="r+")
    group.create_array("new", shape=(6,), chunks=(2,), dtype="i4", dimension_names=["time"])


def delete_member(session: icefloe.Session) -> None:
    del zarr.open_group(session.store, path="g", mode="r+")["sharded"]


def lengthen(session: icefloe.Session) -> None:
    append(session, 6, [88], ["sharded"])


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize(
    ("change", "path", "reason"),
    [
        (overwrite, "/g/a", "overwrote or deleted chunks before the old end"),
        (overwrite_coordinate, "/g/time", "overwrote values before the old end"),
        (describe, "/g/a", "changed more of its metadata than its length"),
        (create_member, "/g/new", "created, replaced or deleted it"),
        (delete_member, "/g/sharded", "created, replaced or deleted it"),
        (lengthen, "/g/a", "and other arrays of 'time' by 3"),
    ],
)
def test_what_is_not_an_append_is_a_conflict_by_name(
    repo: icefloe.Repository,
    change: Callable[[icefloe.Session], None],
    path: str,
    reason: str,
    is_ours: bool,
) -> None:
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other, 4, [10, 11])
    change(late if is_ours else other)
    tip = other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.commit("late", rebase_with=SOLVER)
    said = {conflict.path: str(conflict) for conflict in caught.value.conflicts}
    assert reason in said[path]
    assert ("the session" if is_ours else "the branch") in said[path]
    assert reason in str(pickle.loads(pickle.dumps(caught.value)).conflicts[0]) or len(said) > 1
    assert repo.lookup_branch("main") == tip
    assert late.has_uncommitted_changes


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("value", [True, 1.0])
def test_attributes_that_python_calls_equal(
    repo: icefloe.Repository, value: Any, is_ours: bool
) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="g/a", mode="r+").attrs["flag"] = 1
    session.commit("described")
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other, 4, [10, 11])
    changed = late if is_ours else other
    zarr.open_array(changed.store, path="g/a", mode="r+").attrs["flag"] = value
    other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError, match="changed more of its metadata"):
        late.commit("late", rebase_with=SOLVER)


def test_an_attribute_that_is_not_a_number(repo: icefloe.Repository) -> None:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="g/a", mode="r+").attrs["missing"] = float("nan")
    session.commit("described")
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other, 4, [10, 11])
    other.commit("other")
    late.commit("late", rebase_with=SOLVER)
    assert values_of(repo) == [0, 1, 2, 3, 10, 11, 20, 21]


def test_an_array_that_only_one_side_lengthened(repo: icefloe.Repository) -> None:
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other, 4, [10, 11], ["a"])
    other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.commit("late", rebase_with=SOLVER)
    said = {conflict.path: str(conflict) for conflict in caught.value.conflicts}
    assert said.keys() == {"/g/time", "/g/sharded"}
    assert "the branch did not make it longer" in said["/g/time"]


def test_coordinates_have_to_ascend(repo: icefloe.Repository) -> None:
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 4, [10, 11])
    append(other, 4, [10, 11])
    other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError, match="/g/time: its values would repeat") as told:
        late.commit("late", rebase_with=SOLVER)
    assert "accept_unordered=True" in str(told.value)
    late.commit("late", rebase_with=icefloe.AppendSolver(dim="time", accept_unordered=True))
    assert values_of(repo, "time") == [0, 1, 2, 3, 10, 11, 10, 11]


def test_large_arrays_are_not_written_again() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repo.writable_session("main")
    top = zarr.create_group(session.store).create_group("g")
    top.create_array(
        "a", shape=(2, 1 << 20), chunks=(4, 1 << 20), dtype="f8", dimension_names=["time", "x"]
    )
    session.commit("start")
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 2, [1.0], ["a"])
    append(other, 2, [2.0], ["a"])
    other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError, match="8,388,608 bytes are too many"):
        late.commit("late", rebase_with=SOLVER)


def test_other_changes_follow_the_usual_rules(repo: icefloe.Repository) -> None:
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 4, [20, 21])
    append(other, 4, [10, 11])
    zarr.open_group(late.store, mode="r+").create_group("mine")
    zarr.open_group(other.store, mode="r+").create_group("theirs")
    other.commit("other")
    late.commit("late", rebase_with=SOLVER)
    names = set(zarr.open_group(repo.readonly_session("main").store, mode="r"))
    assert names == {"g", "mine", "theirs"}
    late, other = repo.writable_session("main"), repo.writable_session("main")
    append(late, 8, [40, 41])
    append(other, 8, [30, 31])
    zarr.open_array(late.store, path="g/x", mode="r+")[0] = 1
    zarr.open_array(other.store, path="g/x", mode="r+")[0] = 2
    other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        late.commit("late", rebase_with=SOLVER)
    assert [conflict.path for conflict in caught.value.conflicts] == ["/g/x"]


def test_only_names_are_dimensions() -> None:
    with pytest.raises(icefloe.InvalidInputError, match="name of a dimension"):
        icefloe.AppendSolver(dim=0)  # type: ignore[arg-type]
    assert repr(SOLVER) == "AppendSolver(dim='time', accept_unordered=False)"


def make(storage: icefloe.Storage, spec: int = 2, **members: dict[str, Any]) -> icefloe.Repository:
    """A group `g` of arrays, each with what `create_array` takes."""
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0)
    repo = icefloe.Repository.create(storage, config, spec_version=spec)
    with repo.transaction("main", message="start") as store:
        top = zarr.create_group(store)
        for path, options in members.items():
            top.create_array(path.replace("__", "/"), **{"dtype": "<i8", **options})
    return repo


def lengthened(repo: icefloe.Repository, path: str, values: Any, axis: int = 0) -> icefloe.Session:
    """A session that has appended values to one array."""
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path=path, mode="r+")
    old, shape = array.shape[axis], list(array.shape)
    shape[axis] += len(values)
    array.resize(tuple(shape))
    block = np.array(values).reshape([-1 if at == axis else 1 for at in range(len(shape))])
    array[(slice(None),) * axis + (slice(old, None),)] = np.broadcast_to(
        block, [len(values) if at == axis else size for at, size in enumerate(shape)]
    )
    return session


def test_the_dimension_of_several_groups() -> None:
    """Nothing says that `time` of one group is that of another one."""
    one: dict[str, Any] = {"shape": (2,), "chunks": (2,), "dimension_names": ["time"]}
    repo = make(icefloe.in_memory_storage(), a__time=one, b__time=one)
    late, other = repo.writable_session("main"), repo.writable_session("main")
    for session, first in ((other, 10), (late, 20)):
        for path in ("a/time", "b/time"):
            array: Any = zarr.open_array(session.store, path=path, mode="r+")
            array.resize((4,))
            array[2:] = [first, first + 1]
    other.commit("other")
    with pytest.raises(icefloe.RebaseFailedError, match="arrays of several groups") as caught:
        late.commit("late", rebase_with=SOLVER)
    assert {conflict.path for conflict in caught.value.conflicts} == {"/a/time", "/b/time"}
    # Appends to different groups do not meet.
    early, late = (lengthened(repo, f"{group}/time", [30, 31]) for group in "ab")
    early.commit("early")
    late.commit("late", rebase_with=SOLVER)


@pytest.mark.parametrize("spec", [1, 2])
@pytest.mark.parametrize("growth", [2, 3])
def test_along_the_last_axis(spec: int, growth: int) -> None:
    options: dict[str, Any] = {"shape": (3, 4), "chunks": (2, 2), "dimension_names": ["x", "time"]}
    repo = make(icefloe.in_memory_storage(), spec, a=options)
    first = lengthened(repo, "a", range(10, 10 + growth), axis=1)
    second = lengthened(repo, "a", [20, 21, 22], axis=1)
    first.commit("first")
    before = num_chunks(repo)
    second.commit("second", rebase_with=SOLVER)
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert (array[:] == [[0] * 4 + [*range(10, 10 + growth)] + [20, 21, 22]] * 3).all()
    if growth == 2:
        assert num_chunks(repo) == before  # references moved


def test_deleted_chunks_before_the_old_end(repo: icefloe.Repository) -> None:
    for is_ours in (True, False):
        length = len(values_of(repo))
        late, other = repo.writable_session("main"), repo.writable_session("main")
        append(late, length, [length + 20, length + 21])
        append(other, length, [length + 10, length + 11])
        changed = late if is_ours else other
        asyncio.run(changed.store.delete("g/a/c/0/0"))
        other.commit("other")
        with pytest.raises(icefloe.RebaseFailedError, match="overwrote or deleted chunks"):
            late.commit("late", rebase_with=SOLVER)


@pytest.mark.parametrize("ours", [[1, 0], [2, 1], [4, 1]])
def test_coordinates_that_descend(ours: list[int]) -> None:
    options: dict[str, Any] = {"shape": (0,), "chunks": (9,), "dimension_names": ["time"]}
    repo = make(icefloe.in_memory_storage(), time=options)
    lengthened(repo, "time", [6, 5]).commit("start")
    late = lengthened(repo, "time", ours)
    lengthened(repo, "time", [3, 2]).commit("other")
    if ours[0] >= 2:
        with pytest.raises(icefloe.RebaseFailedError, match="repeat or no longer descend"):
            late.commit("late", rebase_with=SOLVER)
        return
    late.commit("late", rebase_with=SOLVER)
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="time", mode="r")
    assert array[:].tolist() == [6, 5, 3, 2, *ours]


def test_labels_may_not_repeat() -> None:
    options: dict[str, Any] = {
        "shape": (3,), "chunks": (9,), "dtype": "U4", "dimension_names": ["time"],
    }  # fmt: skip
    repo = make(icefloe.in_memory_storage(), time=options)
    with repo.transaction("main", message="labels") as store:
        zarr.open_array(store, path="time", mode="r+")[:] = np.array(["m", "c", "x"])
    late, again = lengthened(repo, "time", ["b", "z"]), lengthened(repo, "time", ["c"])
    lengthened(repo, "time", ["a", "y", "k"]).commit("other")
    late.commit("late", rebase_with=SOLVER)
    with pytest.raises(icefloe.RebaseFailedError, match="its values would repeat: c"):
        again.commit("again", rebase_with=SOLVER)
    array: Any = zarr.open_array(repo.readonly_session("main").store, path="time", mode="r")
    assert array[:].tolist() == ["m", "c", "x", "a", "y", "k", "b", "z"]


def test_references_of_all_kinds_move(tmp_path: Path) -> None:
    """Virtual, packed, inline and native ones, in manifests that arrays share."""
    (tmp_path / "sources").mkdir()
    data = np.arange(100, dtype="<i8")
    (tmp_path / "sources" / "x.bin").write_bytes(data.tobytes())
    prefix = f"file://{tmp_path}/sources/"
    packing = icefloe.PackingConfig(target_size_bytes=1 << 20, max_chunk_size_bytes=100)
    config = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=16, packing=packing)
    sources = icefloe.local_filesystem_store(f"{tmp_path}/sources")
    config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, sources))
    allowed: Any = {prefix: icefloe.credentials.LocalFileSystemAccess}
    repo = icefloe.Repository.create(
        icefloe.local_filesystem_storage(tmp_path / "repo", durable=False),
        config,
        authorize_virtual_chunk_access=allowed,
    )
    sizes = {"inline": 2, "packed": 10, "native": 20, "virtual": 5}
    with repo.transaction("main", message="start") as store:
        top = zarr.create_group(store).create_group("g")
        for name, size in sizes.items():
            top.create_array(
                name,
                shape=(20,),
                chunks=(size,),
                dtype="<i8",
                compressors=None,
                dimension_names=["time"],
            )[:] = 1
    sessions = []
    for turn in range(3):
        session = repo.writable_session("main")
        append(session, 20, [10 * turn + 2] * 20, [name for name in sizes if name != "virtual"])
        array: Any = zarr.open_array(session.store, path="g/virtual", mode="r+")
        array.resize((40,))
        specs = [
            icefloe.VirtualChunkSpec([4 + at], f"{prefix}x.bin", 8 * (20 * turn + 5 * at), 40)
            for at in range(4)
        ]
        assert session.store.set_virtual_refs("g/virtual", specs) is None
        sessions.append(session)
    sessions[0].commit("0")
    before = num_chunks(repo)
    for session in sessions[1:]:
        session.commit("late", rebase_with=SOLVER)
    assert num_chunks(repo) <= before + 2  # packs that were still open
    icechunk: Any = pytest.importorskip("icechunk", minversion="2", reason="needs Python 3.12")
    official = icechunk.Repository.open(
        icechunk.local_filesystem_storage(str(tmp_path / "repo")),
        authorize_virtual_chunk_access={prefix: icechunk.credentials.LocalFileSystemAccess},
    )
    for reader in (repo, official):
        for name in ("inline", "packed", "native"):
            assert values_of(reader, name) == [1] * 20 + [2] * 20 + [12] * 20 + [22] * 20
        assert values_of(reader, "virtual") == [1] * 20 + data[:60].tolist()
    assert repo.verify(read_chunks=True, virtual_sources=True).is_healthy


@pytest.mark.parametrize("spec", [1, 2])
def test_official_takes_turns(tmp_path: Path, spec: int) -> None:
    icechunk: Any = pytest.importorskip("icechunk", minversion="2", reason="needs Python 3.12")
    repo = create(icefloe.local_filesystem_storage(tmp_path), spec)
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    expected = [0, 1, 2, 3]
    for turn in range(3):
        length, first = len(expected), 100 * turn
        late, other = repo.writable_session("main"), official.writable_session("main")
        append(late, length, [first + 20, first + 21])
        append(other, length, [first + 10])
        other.commit("official")
        late.commit("ours", rebase_with=SOLVER)
        expected += [first + 10, first + 20, first + 21]
        for reader in (repo, official):
            for name in ("time", "a", "sharded"):
                assert values_of(reader, name) == expected
    # Official rebases over the log of such a commit, which lists chunks where they are now.
    late = official.writable_session("main")
    append(ours := repo.writable_session("main"), len(expected), [500])
    append(theirs := repo.writable_session("main"), len(expected), [400])
    zarr.open_array(late.store, path="g/x", mode="r+")[0] = 5
    theirs.commit("first")
    ours.commit("second", rebase_with=SOLVER)
    late.commit("official", rebase_with=icechunk.ConflictDetector())
    assert values_of(official) == [*expected, 400, 500]
