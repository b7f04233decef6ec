"""`Session.chunk_type` asked again and again: the short way in memory, beside the long way."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import (
    ChunkType,
    IcechunkError,
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    Repository,
    RepositoryConfig,
    Session,
    in_memory_storage,
)
from icefloe.repo.session import known_kind
from icefloe.storage.run import run_blocking
from icefloe.store.operations import chunk_kind

GRID = (6, 4)


def small_manifests() -> RepositoryConfig:
    """Two rows of chunks in each manifest."""
    sizes = {ManifestSplitDimCondition.Axis(0): 2}
    split = ManifestSplittingConfig.from_dict({ManifestSplitCondition.AnyArray(): sizes})
    return RepositoryConfig(
        inline_chunk_threshold_bytes=0, manifest=ManifestConfig(splitting=split)
    )


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def repository(request: pytest.FixtureRequest) -> Repository:
    return Repository.create(in_memory_storage(), small_manifests(), spec_version=request.param)


def write(session: Session, rows: slice = slice(None), *, name: str = "a") -> Any:
    array = zarr.create_array(
        session.store, name=name, shape=GRID, chunks=(1, 1), dtype="u1", compressors=None
    )
    array[rows] = 1
    return array


def all_types(session: Session, path: str = "/a") -> dict[tuple[int, ...], ChunkType]:
    """By the long way, then by the one that users take, twice; all have to agree."""
    places: list[tuple[int, ...]] = list(product(range(GRID[0] + 1), range(GRID[1] + 1)))
    found = {at: ChunkType(run_blocking(chunk_kind(session.workspace, path, at))) for at in places}
    for _ in range(2):
        assert {at: session.chunk_type(path, at) for at in places} == found
    return found


def num_native(session: Session, path: str = "/a") -> int:
    return list(all_types(session, path).values()).count(ChunkType.native)


def test_committed_chunks_are_found_in_memory(repository: Repository) -> None:
    session = repository.writable_session("main")
    write(session, slice(1, 5))
    session.commit("chunks")
    reader = repository.readonly_session("main")
    assert known_kind(reader.handle, reader.workspace.state.view, "/a", (1, 1)) is None
    assert num_native(reader) == 16
    known = [
        known_kind(reader.handle, reader.workspace.state.view, "/a", at)
        for at in [(1, 1), [4, 3], (0, 0), (5, 0), (6, 0), (1, 4)]
    ]
    assert known == [1, 1, 0, 0, 0, 0]


def test_changes_of_the_session_count(repository: Repository) -> None:
    session = repository.writable_session("main")
    write(session, slice(0, 2))
    session.commit("chunks")
    session = repository.writable_session("main")
    assert num_native(session) == 8
    array: Any = zarr.open_array(session.store, path="a")
    array[3] = 1
    assert num_native(session) == 12
    session.discard_changes()
    assert num_native(session) == 8
    del zarr.open_group(session.store)["a"]
    with pytest.raises(IcechunkError, match="node not found: '/a'"):
        session.chunk_type("/a", (0, 0))
    write(session, slice(0, 1))  # another array in its place
    assert num_native(session) == 4
    session.commit("replaced")
    assert num_native(session) == 4


def test_a_moved_array_is_found_where_it_is() -> None:
    repository = Repository.create(in_memory_storage(), small_manifests())
    session = repository.writable_session("main")
    write(session)
    session.commit("chunks")
    session = repository.rearrange_session("main")
    assert num_native(session) == 24
    session.move("/a", "/b")
    assert num_native(session, "/b") == 24
    with pytest.raises(IcechunkError, match="node not found: '/a'"):
        session.chunk_type("/a", (0, 0))


def test_numbers_of_numpy_and_named_arguments(repository: Repository) -> None:
    session = repository.writable_session("main")
    write(session)
    session.commit("chunks")
    assert num_native(session) == 24
    numbers: list[Any] = [np.uint8(1), np.int64(1), True]
    for number in numbers:
        assert session.chunk_type("/a", (number, number)) == ChunkType.native
    assert session.chunk_type("/a", chunk_coordinates=[1, 1]) == ChunkType.native
    assert session.chunk_type(array_path="/a", chunk_coordinates=range(2)) == ChunkType.native


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("/a", (0,)), IcechunkError, "has 1 dimensions"),
        (("/a", (-1, 0)), IcechunkError, "numbers run from 0"),
        (("/a", (0, 2**32)), IcechunkError, "numbers run from 0"),
        (("a", (0, 0)), IcechunkError, "must start with '/'"),
        (("/a", (1.0, 0)), TypeError, "float"),
        (("/a", 7), TypeError, "chunk_coordinates is 7"),
        ((["/a"], (0, 0)), TypeError, "array_path is"),
        (("/a",), TypeError, "chunk_coordinates"),
        (("/a", (0, 0), 1), TypeError, "too many"),
    ],
)
def test_bad_arguments_are_refused_the_second_time_too(
    repository: Repository, arguments: Any, error: type[Exception], words: str
) -> None:
    session = repository.writable_session("main")
    write(session)
    session.commit("chunks")
    for _ in range(2):
        assert session.chunk_type("/a", (0, 0)) == ChunkType.native
        with pytest.raises(error, match=words):
            session.chunk_type(*arguments)
