"""`shift_array` and `reindex_array`: the same arrays come out as with official."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.changes.chunk_edits import shifted
from icefloe.format.chunk_refs import ChunkRefs
from tests.api.outcomes import changes, hierarchy, keys, outcome, put


@pytest.fixture(scope="module")
def official() -> Any:
    return pytest.importorskip(
        "icechunk", minversion="2", reason="official wheels of version 2 need Python 3.12 or later"
    )


def line(library: Any, *, holes: tuple[int, ...] = (), is_committed: bool = True) -> Any:
    """A session with an array /a of five chunks along one dimension."""
    repository = library.Repository.create(library.in_memory_storage())
    session = repository.writable_session("main")
    array = zarr.open_group(session.store, mode="a").create_array(
        "a", shape=(10,), chunks=(2,), dtype="i4", fill_value=-1
    )
    for number in set(range(5)) - set(holes):
        array[2 * number : 2 * number + 2] = number
    if is_committed:
        session.commit("line")
        session = repository.writable_session("main")
    return session


def square(library: Any) -> Any:
    """A session with an array /a of three by three chunks."""
    repository = library.Repository.create(library.in_memory_storage())
    session = repository.writable_session("main")
    array = zarr.open_group(session.store, mode="a").create_array(
        "a", shape=(6, 5), chunks=(2, 2), dtype="i4", fill_value=-1
    )
    array[:] = np.arange(30).reshape(6, 5)
    session.commit("square")
    return repository.writable_session("main")


def seen(session: Any) -> list[Any]:
    """What is in the session, and still there after a commit."""
    before = [keys(session.store), changes(session.status()), session.has_uncommitted_changes]
    session.commit("relabelled", allow_empty=True)
    assert keys(session.store) == before[0]
    return before


SHIFTS = [(1,), (-1,), (0,), (2,), (5,), (7,), (-5,), (2**31,), (2**40,), (-(2**63),)]


@pytest.mark.parametrize("offset", SHIFTS)
@pytest.mark.parametrize("holes", [(), (3,)])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_shift_along_a_line(
    offset: tuple[int, ...], holes: tuple[int, ...], is_committed: bool, official: Any
) -> None:
    results = []
    for library in (icefloe, official):
        session = line(library, holes=holes, is_committed=is_committed)
        results.append([outcome(session.shift_array, "/a", offset), *seen(session)])
    assert results[0] == results[1]


@pytest.mark.parametrize("offset", [(1, 0), (0, -1), (1, -1), (-2, 2), (0, 0), (3, 0), (-1, -1)])
def test_a_shift_in_two_dimensions(offset: tuple[int, int], official: Any) -> None:
    results = []
    for library in (icefloe, official):
        session = square(library)
        results.append([outcome(session.shift_array, "/a", list(offset)), *seen(session)])
    assert results[0] == results[1]


def _twice(session: Any) -> None:
    session.shift_array("/a", [2])
    session.shift_array("/a", [-2])


def _grown(session: Any) -> None:
    zarr.open_array(session.store, path="a").resize((16,))
    session.shift_array("/a", [3])


def _shrunk(session: Any) -> None:
    zarr.open_array(session.store, path="a").resize((6,))
    session.shift_array("/a", [-1])


def _written(session: Any) -> None:
    array: Any = zarr.open_array(session.store, path="a")
    array[0:2] = 70
    session.shift_array("/a", [1])
    array[6:8] = 80
    session.shift_array("/a", np.array([1]))


@pytest.mark.parametrize("steps", [_twice, _grown, _shrunk, _written])
def test_a_shift_among_other_changes(steps: Callable[[Any], None], official: Any) -> None:
    results = []
    for library in (icefloe, official):
        session = line(library)
        steps(session)
        results.append(seen(session))
    assert results[0] == results[1]


Function = Callable[[Any], Any]
REINDEXED: dict[str, tuple[Function, Function | None, tuple[int, ...]]] = {
    "reversed": (lambda i: [4 - i[0]], None, ()),
    "reversed with a hole": (lambda i: [4 - i[0]], None, (3,)),
    "reversed both ways": (lambda i: [4 - i[0]], lambda i: [4 - i[0]], (3,)),
    "shifted, the last one stays": (lambda i: [i[0] + 1] if i[0] < 4 else None, None, ()),
    "shifted both ways": (
        lambda i: [i[0] + 1] if i[0] < 4 else None,
        lambda i: [i[0] - 1] if i[0] else None,
        (1,),
    ),
    "all to one place": (lambda _i: [0], None, ()),
    "a tuple": (lambda i: (i[0],), None, ()),
    "an array": (lambda i: 4 - np.array(i), None, ()),
    "nothing moves": (lambda _i: None, None, ()),
    "everything is cleared": (lambda _i: None, lambda _i: None, ()),
    "cleared from outside": (lambda _i: None, lambda _i: [99], ()),
    "nothing is cleared": (lambda _i: None, lambda i: i, ()),
    "cleared from a hole": (lambda _i: None, lambda _i: [3], (3,)),
    "out of the grid": (lambda i: [i[0] + 1], None, ()),
    "out of the grid, both ways": (lambda _i: [9], lambda _i: [0], ()),
}


@pytest.mark.parametrize("name", REINDEXED)
@pytest.mark.parametrize("is_committed", [True, False])
def test_reindexing(name: str, is_committed: bool, official: Any) -> None:
    forward, backward, holes = REINDEXED[name]
    results = []
    for library in (icefloe, official):
        session = line(library, holes=holes, is_committed=is_committed)
        results.append([outcome(session.reindex_array, "/a", forward, backward), *seen(session)])
    assert results[0] == results[1]


@pytest.mark.parametrize("own", [(0,), (1,), (2,), (0, 1), (1, 4)])
@pytest.mark.parametrize("name", ["all to one place", "half of them"])
def test_of_chunks_sent_to_one_place_that_of_the_session_counts(
    name: str, own: tuple[int, ...], official: Any
) -> None:
    """Those in manifests come first, and of several the last one counts."""
    forward = {"all to one place": lambda _i: [3], "half of them": lambda i: [i[0] // 2]}[name]
    results = []
    for library in (icefloe, official):
        session = line(library)
        array: Any = zarr.open_array(session.store, path="a", mode="r+")
        for at in own:
            array[2 * at : 2 * at + 2] = 90 + at
        told = outcome(session.reindex_array, "/a", forward, None)
        results.append([told, array[:].tolist(), *seen(session)])
    assert results[0] == results[1]


def _refusals(library: Any) -> list[Any]:
    session = line(library)
    repository = hierarchy(library, library.in_memory_storage())
    reader = repository.readonly_session("main")
    mover = repository.rearrange_session("main")
    return [
        outcome(session.shift_array, "/nothing", [1]),
        outcome(session.shift_array, "/", [1]),
        outcome(session.shift_array, "a", [1]),
        outcome(session.shift_array, "/a", ["x"]),
        outcome(session.shift_array, "/a", [1.5]),
        outcome(session.reindex_array, "/nothing", lambda i: i),
        outcome(session.reindex_array, "/", lambda i: i),
        outcome(session.reindex_array, "/a", 3),
        *(outcome(other.shift_array, "/a", [1]) for other in (reader, mover)),
        *(outcome(other.reindex_array, "/a", lambda i: i) for other in (reader, mover)),
    ]


def test_refusals_are_the_same(official: Any) -> None:
    assert _refusals(icefloe) == _refusals(official)


WRONG: dict[str, tuple[Function, Function | None]] = {
    "a negative index": (lambda _i: [-1], None),
    "a number": (lambda _i: 3, None),
    "text": (lambda _i: "3", None),
    "fractions": (lambda _i: [1.0], None),
    "too many dimensions": (lambda _i: [0, 0], None),
    "too many dimensions on the way back": (lambda _i: None, lambda _i: [0, 0]),
    "text on the way back": (lambda _i: None, lambda _i: "x"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_of_a_function_are_refused(name: str) -> None:
    session = line(icefloe)
    with pytest.raises(icefloe.InvalidInputError, match=r"chunk \(0,\)") as caught:
        session.reindex_array("/a", *WRONG[name])
    assert caught.value.kind == icefloe.ErrorKind.INVALID_CHUNK_INDEX
    assert not session.has_uncommitted_changes


def test_exceptions_of_a_function_come_through() -> None:
    session = line(icefloe)
    with pytest.raises(ZeroDivisionError):
        session.reindex_array("/a", lambda i: [i[0] // 0])
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("offset", [(), (1,), (1, 1, 1)])
def test_an_offset_has_the_dimensions_of_the_array(offset: tuple[int, ...]) -> None:
    with pytest.raises(icefloe.InvalidInputError, match="the array has 2"):
        square(icefloe).shift_array("/a", offset)


@pytest.mark.parametrize("library", ["icefloe", "icechunk"])
def test_chunks_of_different_sizes_do_not_change_places(library: str, official: Any) -> None:
    module = icefloe if library == "icefloe" else official
    session = line(module)
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[2, 3]]}}
    document = {"node_type": "array", "zarr_format": 3, "shape": [5], "chunk_grid": grid}
    put(session.store, "r/zarr.json", json.dumps(document).encode())
    for name, argument in (("shift_array", [0]), ("reindex_array", lambda i: i)):
        with pytest.raises(module.IcechunkError) as caught:
            getattr(session, name)("/r", argument)
        assert caught.value.kind == "unknown"


def test_a_shift_is_done_in_columns() -> None:
    """A million references take well under a second, and no object each."""

    index = np.stack([axis.reshape(-1) for axis in np.indices((1000, 1000))], axis=1)
    ids = np.zeros((len(index), 12), np.uint8)
    refs = ChunkRefs.native(index, ids, 0, np.arange(len(index)))
    moved, vacated = shifted(refs, [1, -1], [1000, 1000])
    assert (len(moved), len(vacated)) == (999 * 999, 1999)
    row = moved.get((1, 0))
    assert row is not None
    assert row.length == 1
