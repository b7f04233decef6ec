"""What chunk reference columns refuse to be made of: better here than in a manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_refs import ChunkRefs


@pytest.mark.parametrize("coordinates", [(), (0,), (0, 0, 0)])
def test_an_index_of_another_rank_is_refused(coordinates: tuple[int, ...]) -> None:
    refs = ChunkRefs.inline_chunks([[0, 0]], [b"x"])
    with pytest.raises(InvalidInputError, match="the array has 2") as caught:
        refs.get(coordinates)
    assert caught.value.kind == ErrorKind.INVALID_CHUNK_INDEX


def test_indices_that_are_no_matrix_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="one row per chunk") as caught:
        ChunkRefs.inline_chunks([0, 1], [b"x", b"y"])
    assert caught.value.kind == ErrorKind.INVALID_CHUNK_INDEX


@pytest.mark.parametrize("wrong", [-1, 2**32, 2**32 + 5])
@pytest.mark.parametrize("kind", [list, np.array], ids=["list", "array"])
def test_an_index_that_does_not_fit_is_refused_rather_than_wrapped(wrong: int, kind: Any) -> None:
    with pytest.raises(InvalidInputError):
        ChunkRefs.inline_chunks(kind([[0], [wrong]]), [b"x", b"y"])


@pytest.mark.parametrize("column", ["offset", "length"])
def test_a_negative_offset_or_length_is_refused_rather_than_wrapped(column: str) -> None:
    columns = {"offset": np.array([0, 0]), "length": np.array([1, 1])}
    columns[column][1] = -1
    with pytest.raises(InvalidInputError):
        ChunkRefs.virtual([[0], [1]], ["a", "b"], **columns)


@pytest.mark.parametrize(
    "make",
    [
        lambda index: ChunkRefs.inline_chunks(index, [b"only one"]),
        lambda index: ChunkRefs.virtual(index, ["only one"], [0, 0], [1, 1]),
        lambda index: ChunkRefs.virtual(index, ["a", "b"], [0, 0], [1, 1], etag=["only one"]),
        lambda index: ChunkRefs.virtual(index, ["a", "b"], [0, 0], [1, 1], last_modified=[1]),
        lambda index: ChunkRefs.native(index, np.zeros((1, 12), np.uint8), [0, 0], [1, 1]),
        lambda index: ChunkRefs.native(index, np.zeros((2, 12), np.uint8), [0, 0, 0], [1, 1]),
    ],
    ids=["inline", "location", "etag", "last_modified", "chunk_id", "offset"],
)
def test_columns_of_another_length_than_the_index_are_refused(make: Any) -> None:
    with pytest.raises(InvalidInputError):
        make([[0], [1]])


@pytest.mark.parametrize("locations", [[None, None], ["s3://bucket/a", None]])
def test_a_virtual_chunk_without_a_location_is_refused(locations: list[str | None]) -> None:
    with pytest.raises(InvalidInputError):
        ChunkRefs.virtual([[0], [1]], locations, [0, 0], [1, 1])


def test_an_inline_chunk_without_bytes_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        ChunkRefs.inline_chunks([[0], [1]], [b"x", None])
