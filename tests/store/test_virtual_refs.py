"""Virtual references as columns: lists, grids and tables mean the same, and nothing is missed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe import VirtualChunkContainer, VirtualChunkSpec
from icefloe.config.containers import ContainerSet, stored_location
from icefloe.store.virtual import match_containers
from tests.virtual_sources import config_of

CONTAINERS = [
    VirtualChunkContainer("s3://bucket/", icefloe.s3_store(region="x"), "s3"),
    VirtualChunkContainer("s3://bucket/deep/er/", icefloe.s3_store(region="x")),
    VirtualChunkContainer("gs://bucket/p/", icefloe.gcs_store()),
    VirtualChunkContainer("file:///data/a b/", icefloe.local_filesystem_store("/")),
    VirtualChunkContainer("file:///data/plain/", icefloe.local_filesystem_store("/"), "plain"),
    VirtualChunkContainer("HTTP://h.com/", icefloe.http_store()),
]


def session_with(shape: tuple[int, ...]) -> Any:
    repo = icefloe.Repository.create(icefloe.in_memory_storage(), config_of(CONTAINERS))
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=shape, chunks=(1,) * len(shape), dtype="u1")
    return session


def refs_of(session: Any) -> pa.Table:
    node, _ = session._state.array("/a")
    refs, _ = session._state.changes.edits(node).columns()
    return refs.to_arrow(plain=True)


LOCATIONS = ["s3://bucket/x", "s3://bucket/y", "vcc://plain/z", "s3://bucket/x"]
OFFSETS, LENGTHS = [0, 10, 20, 30], [1, 2, 3, 4]
INDEX = [[0, 0], [0, 1], [1, 0], [1, 1]]
WHEN = datetime(2020, 1, 1, tzinfo=UTC)


def as_table(**changes: Any) -> pa.Table:
    columns = {
        "index": pa.array(INDEX, pa.list_(pa.uint32())),
        "location": pa.array(LOCATIONS),
        "offset": pa.array(OFFSETS),
        "length": pa.array(LENGTHS),
        **changes,
    }
    return pa.table({name: column for name, column in columns.items() if column is not None})


AXES = {"index": None, "i0": [0, 0, 1, 1], "i1": [0, 1, 0, 1]}
SHUFFLED = pa.array([2, 0, 3, 1])
FORMS: dict[str, Callable[[Any], Any]] = {
    "specs": lambda store: store.set_virtual_refs(
        "a",
        [VirtualChunkSpec(*row) for row in zip(INDEX, LOCATIONS, OFFSETS, LENGTHS, strict=True)],
    ),
    "grid": lambda store: store.set_virtual_refs_arr(
        "a", (2, 2), LOCATIONS, np.array(OFFSETS, "u8"), np.array(LENGTHS, "u8")
    ),
    "grid of Arrow": lambda store: store.set_virtual_refs_arr(
        "a", (2, 2), pa.array(LOCATIONS).dictionary_encode(), OFFSETS, LENGTHS
    ),
    "table": lambda store: store.set_virtual_refs_table("a", as_table()),
    "table of axes": lambda store: store.set_virtual_refs_table("/a", as_table(**AXES)),
    "table of fixed lists": lambda store: store.set_virtual_refs_table(
        "a", as_table(index=pa.array(INDEX, pa.list_(pa.int64(), 2)))
    ),
    "dictionary": lambda store: store.set_virtual_refs_table(
        "a", as_table(location=pa.array(LOCATIONS).dictionary_encode())
    ),
    "large text": lambda store: store.set_virtual_refs_table(
        "a", as_table(location=pa.array(LOCATIONS, pa.large_string()))
    ),
    "any order": lambda store: store.set_virtual_refs_table("a", as_table().take(SHUFFLED)),
    "in pieces": lambda store: store.set_virtual_refs_table(
        "a",
        pa.concat_tables(
            as_table(location=pa.array(LOCATIONS).dictionary_encode()).slice(at, 2) for at in (0, 2)
        ),
    ),
    "batch": lambda store: store.set_virtual_refs_table("a", as_table().to_batches()[0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_sets_the_same(form: str) -> None:
    session, expected = session_with((2, 2)), session_with((2, 2))
    assert FORMS[form](session.store) is None
    for at, location, offset, length in zip(INDEX, LOCATIONS, OFFSETS, LENGTHS, strict=True):
        key = f"a/c/{at[0]}/{at[1]}"
        expected.store.set_virtual_ref(key, location, offset=offset, length=length)
    assert refs_of(session).equals(refs_of(expected))
    assert session.all_virtual_chunk_locations()[2] == "file:///data/plain/z"
    session.commit("refs")
    assert session.chunk_type("/a", (1, 1)) == icefloe.ChunkType.virtual


def test_checksums_in_a_table() -> None:
    session = session_with((2, 2))
    table = as_table(
        etag=pa.array(["e", None, None, None]),
        last_modified=pa.array([None, WHEN, WHEN.replace(microsecond=1), None]),
    )
    assert session.store.set_virtual_refs_table("a", table) is None
    found = refs_of(session)
    assert found["etag"].to_pylist() == ["e", None, None, None]
    second = int(WHEN.timestamp())
    assert found["last_modified"].to_pylist() == [None, second, second + 1, None]
    seconds = as_table(last_modified=pa.array([second] * 4))
    assert session.store.set_virtual_refs_table("a", seconds) is None
    assert refs_of(session)["last_modified"].to_pylist() == [second] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"location": None}, "no column 'location'"),
        ({"index": None}, "no column 'i0'"),
        ({"extra": [1, 2, 3, 4]}, "'extra'"),
        ({"location": pa.array([1, 2, 3, 4])}, "expected text"),
        ({"location": pa.array(["s3://bucket/x", None, None, None])}, "no location"),
        ({"offset": pa.array([0, None, 0, 0])}, "nulls"),
        ({"offset": pa.array([0, -1, 0, 0])}, "-1"),
        ({"offset": pa.array([0.5, 1, 1, 1])}, "whole numbers"),
        ({"length": pa.array([1, 0, 1, 1])}, "no bytes"),
        ({"index": pa.array([[0], [1], [0], [1]])}, "dimensions"),
        ({"index": pa.array([[0, 0], [1], [0, 1], [1]])}, "dimensions"),
        ({"index": pa.array([[0, 0], [0, 2], [0, 1], [1, 1]])}, r"\(0, 2\) is not in the grid"),
        ({"location": pa.array(["rel", "rel", "rel", "rel"])}, "absolute URL"),
        ({"location": pa.array(["gs://bucket/p/../x"] * 4)}, "segments"),
    ],
)
def test_tables_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    session = session_with((2, 2))
    with pytest.raises(icefloe.InvalidInputError, match=message):
        session.store.set_virtual_refs_table("a", as_table(**changes))
    assert not len(refs_of(session))


def test_what_no_container_covers_is_left_out_and_named() -> None:
    session = session_with((2, 2))
    table = as_table(location=pa.array(["s3://other/x", "s3://bucket/x", "vcc://no/x", "s3://q/"]))
    assert session.store.set_virtual_refs_table("a", table) == [(0, 0), (1, 0), (1, 1)]
    assert refs_of(session)["offset"].to_pylist() == [10]
    unchecked = session.store.set_virtual_refs_table("a", table, validate_containers=False)
    assert unchecked is None
    assert len(refs_of(session)) == 4


async def test_twins_inside_an_event_loop() -> None:
    session = session_with((2, 2))
    store = session.store
    await store.set_virtual_ref_async("a/c/0/0", "s3://bucket/x", offset=0, length=1)
    spec = VirtualChunkSpec([0, 1], "s3://bucket/y", 0, 1)
    assert await store.set_virtual_refs_async("a", [spec]) is None
    one = np.ones(1, "u8")
    grid = store.set_virtual_refs_arr_async("a", (1, 1), ["s3://z/"], one, one, arr_offset=(1, 1))
    assert await grid == [(1, 1)]
    assert await store.set_virtual_refs_table_async("a", as_table().slice(2, 1)) is None
    assert len(refs_of(session)) == 3


def test_read_only_stores_take_no_references() -> None:
    session = session_with((2, 2))
    store = session.store.with_read_only(read_only=True)
    for form in FORMS.values():
        with pytest.raises(icefloe.ReadOnlyError):
            form(store)


PARTS = st.sampled_from(
    [
        *("s3://", "S3://", "gs://", "file://", "HTTP://", "http://", "vcc://", "bucket", "h.com"),
        *("s3", "/", "//", "/./", "/../", "/deep/er/", "/p/", "/data/", "a b", "a%20b", "plain"),
        *("%2e%2e", "?q", "#f", "%", "\\", "ü", "x", "\n", "@", ":80"),
    ]
)


@given(st.lists(st.lists(PARTS, max_size=6).map("".join), min_size=1, max_size=20))
def test_columns_are_matched_as_single_locations_are(locations: list[str]) -> None:
    containers = ContainerSet(CONTAINERS)
    order = [container.url_prefix for container in containers]
    valid, expected = [], []
    for location in locations:
        try:
            stored = stored_location(location)
        except icefloe.InvalidInputError:
            with pytest.raises(icefloe.InvalidInputError):
                match_containers(pa.array(["s3://bucket/x", location]), ContainerSet([]))
            continue
        try:
            number = order.index(containers.resolve(location).container.url_prefix)
        except icefloe.InvalidInputError as error:
            if error.kind == "invalid-virtual-ref":
                continue
            number = -1
        valid.append(location)
        expected.append((stored, number))
    matched = match_containers(pa.array(valid, pa.string()), containers)
    assert list(zip(matched.values.to_pylist(), matched.number.tolist(), strict=True)) == expected
    again = match_containers(matched.values, containers)  # stored form is stored form
    assert again.values.equals(matched.values)
    assert again.number.tolist() == matched.number.tolist()
