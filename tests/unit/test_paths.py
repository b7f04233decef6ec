"""Node paths: which are canonical, how they sort, and what moving does to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import paths
from icefloe.errors import ErrorKind, InvalidInputError

NAMES = st.text(min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..", "") and "/" not in name
)
PATHS = st.lists(NAMES, max_size=5).map(lambda names: "/" + "/".join(names))


@pytest.mark.parametrize(
    "path", ["/", "/a", "/a/b", "/größe/深い", "/...", "/.a", "/a b", "/a-b/c.d"]
)
def test_canonical_paths_are_returned_as_they_are(path: str) -> None:
    assert paths.validate(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "a", "a/b", "//", "/a/", "/a//b", "//a", "/.", "/..", "/a/../b", "/a/./b", "/a/..", " /a"],
)
def test_other_paths_are_refused_with_the_path_in_the_message(path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        paths.validate(path)
    assert caught.value.kind == ErrorKind.INVALID_PATH
    assert repr(path) in str(caught.value)


@given(PATHS)
def test_zarr_names_and_paths_are_two_forms_of_the_same(path: str) -> None:
    assert paths.from_key(paths.to_key(path)) == path


def test_the_root_is_the_empty_zarr_name() -> None:
    assert paths.from_key("") == "/"
    assert paths.to_key("/") == ""


@given(PATHS)
def test_a_path_is_its_parent_and_its_name(path: str) -> None:
    parent = paths.parent(path)
    if path == "/":
        assert parent is None
        assert paths.name(path) == ""
    else:
        assert parent is not None
        assert f"{parent.rstrip('/')}/{paths.name(path)}" == path
        assert paths.segments(path) == (*paths.segments(parent), paths.name(path))


def test_ancestors_come_nearest_first() -> None:
    assert paths.ancestors("/a/b/c") == ["/a/b", "/a", "/"]
    assert paths.ancestors("/a") == ["/"]
    assert paths.ancestors("/") == []


def test_snapshots_order_whole_paths_and_logs_order_segments() -> None:
    found = ["/ab", "/a/b", "/a-b", "/a", "/"]
    assert sorted(found) == ["/", "/a", "/a-b", "/a/b", "/ab"]
    assert sorted(found, key=paths.segments) == ["/", "/a", "/a/b", "/a-b", "/ab"]


@given(st.lists(PATHS, max_size=8))
def test_paths_sort_like_their_utf_8_bytes(found: list[str]) -> None:
    in_bytes = sorted(found, key=lambda path: path.encode("utf-8", "surrogatepass"))
    assert sorted(found) == in_bytes


@pytest.mark.parametrize(
    ("path", "group", "expected"),
    [
        ("/a", "/", True),
        ("/", "/", True),
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/a-b", "/a", False),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/", "/a", False),
    ],
)
def test_what_lies_within_a_group(path: str, group: str, expected: bool) -> None:
    assert paths.is_within(path, group) is expected


@pytest.mark.parametrize(
    ("path", "source", "destination", "expected"),
    [
        ("/a", "/a", "/b", "/b"),
        ("/a/x/y", "/a", "/b/c", "/b/c/x/y"),
        ("/a/a", "/a", "/b", "/b/a"),
        ("/x", "/", "/b", "/b/x"),
        ("/a/x", "/a", "/", "/x"),
        ("/a", "/a", "/", "/"),
    ],
)
def test_moving_a_group_renames_what_lies_within_it(
    path: str, source: str, destination: str, expected: str
) -> None:
    assert paths.rebase(path, source, destination) == expected


@given(PATHS, PATHS, PATHS)
def test_moving_there_and_back_changes_nothing(below: str, source: str, destination: str) -> None:
    path = source.rstrip("/") + below if below != "/" else source
    there = paths.rebase(path, source, destination)
    assert paths.is_within(there, destination)
    assert paths.rebase(there, destination, source) == path
