"""The number of dimensions of an array is fixed once it has chunks: their indices would lie in no
grid. Without chunks it may change, as all metadata may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import icefloe
from icefloe import ErrorKind

SHAPES: list[list[int]] = [[], [8], [4, 4], [2, 2, 2]]


def document(shape: list[int], **more: Any) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "uint8",
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [2] * len(shape)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            **more,
        }
    ).encode()


def put(session: icefloe.Session, key: str, value: bytes) -> None:
    sync(session.store.set(key, cpu.Buffer.from_bytes(value)))


def get(session: icefloe.Session, key: str) -> bytes | None:
    found = sync(session.store.get(key, default_buffer_prototype()))
    return None if found is None else found.to_bytes()


def chunk_key(shape: list[int]) -> str:
    return "/".join(["a/c", *("0" for _ in shape)])


def new_repository(tmp_path: Path, shape: list[int], *, chunks: bool) -> icefloe.Repository:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    session = repo.writable_session("main")
    put(session, "a/zarr.json", document(shape))
    if chunks:
        put(session, chunk_key(shape), b"12345678")
    session.commit("an array")
    return repo


CHANGES = [(old, new) for old in SHAPES for new in SHAPES if old != new]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_an_array_with_committed_chunks_keeps_its_rank(
    tmp_path: Path, old: list[int], new: list[int]
) -> None:
    repo = new_repository(tmp_path, old, chunks=True)
    session = repo.writable_session("main")
    with pytest.raises(icefloe.InvalidInputError, match="delete the array first") as caught:
        put(session, "a/zarr.json", document(new))
    assert caught.value.kind == ErrorKind.BAD_METADATA
    assert f"{len(old)} dimensions" in str(caught.value)
    put(session, "a/zarr.json", document(old, attributes={"x": 1}))  # the session goes on
    session.commit("attributes")
    assert get(repo.readonly_session("main"), chunk_key(old)) == b"12345678"


@pytest.mark.parametrize(("old", "new"), CHANGES)
@pytest.mark.parametrize("is_new", [True, False])
def test_an_array_with_chunks_of_this_session_keeps_its_rank(
    tmp_path: Path, old: list[int], new: list[int], is_new: bool
) -> None:
    repo = new_repository(tmp_path, old, chunks=False)
    session = repo.writable_session("main")
    if is_new:
        sync(session.store.delete("a/zarr.json"))
        put(session, "a/zarr.json", document(old))
    put(session, chunk_key(old), b"12345678")
    with pytest.raises(icefloe.InvalidInputError, match="delete the array first"):
        put(session, "a/zarr.json", document(new))
    assert session.commit("a chunk")
    assert get(repo.readonly_session("main"), chunk_key(old)) == b"12345678"


@pytest.mark.parametrize(("old", "new"), CHANGES)
@pytest.mark.parametrize("delete", [True, False])
def test_the_rank_changes_without_chunks_or_by_deleting_the_array(
    tmp_path: Path, old: list[int], new: list[int], delete: bool
) -> None:
    repo = new_repository(tmp_path, old, chunks=delete)
    session = repo.writable_session("main")
    if delete:
        sync(session.store.delete("a/zarr.json"))
    put(session, "a/zarr.json", document(new))
    put(session, chunk_key(new), b"abcdefgh")
    session.commit("another rank")
    assert get(repo.readonly_session("main"), chunk_key(new)) == b"abcdefgh"


@pytest.mark.parametrize("has_chunks", [True, False])
@pytest.mark.parametrize("who_changes_the_rank", ["they", "we"])
@pytest.mark.parametrize(
    "solver", [icefloe.ConflictDetector(), icefloe.BasicConflictSolver()], ids=["detect", "basic"]
)
def test_a_rank_and_a_chunk_changed_at_once_are_a_conflict(
    tmp_path: Path, solver: icefloe.ConflictSolver, who_changes_the_rank: str, has_chunks: bool
) -> None:
    repo = new_repository(tmp_path, [8], chunks=False)
    ours, theirs = (repo.writable_session("main") for _ in range(2))
    sides = (theirs, ours) if who_changes_the_rank == "they" else (ours, theirs)
    put(sides[0], "a/zarr.json", document([4, 4]))
    if has_chunks:
        put(sides[0], "a/c/0/0", b"1234")
    put(sides[1], "a/c/0", b"12")
    theirs.commit("theirs")
    with pytest.raises(icefloe.RebaseFailedError) as caught:
        ours.rebase(solver)
    assert caught.value.conflicts
    with pytest.raises(icefloe.ConflictError):
        ours.commit("ours")


def test_forks_that_change_rank_and_chunks_are_not_merged(tmp_path: Path) -> None:
    repo = new_repository(tmp_path, [8], chunks=False)
    session = repo.writable_session("main")
    fork = session.fork()
    put(fork, "a/zarr.json", document([4, 4]))
    put(session, "a/c/0", b"12")
    with pytest.raises(icefloe.IcefloeError, match="dimensions"):
        session.merge(fork)
    session.commit("the chunk")
