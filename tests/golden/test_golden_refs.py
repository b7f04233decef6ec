"""Ref files of version 1: what they point at, and where they are."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from icefloe.format import layout
from icefloe.format.ref_files import TOMBSTONE, decode_ref_file, encode_ref_file
from icefloe.ids import SnapshotId
from tests.golden import repository_path
from tests.golden.decoded import expectation, with_spec

spec_1_repositories = pytest.mark.parametrize("name", with_spec(1))


def ref_files(name: str, kind: str) -> dict[str, bytes]:
    """Contents of the ref files of a kind, by ref name."""
    folder = repository_path(name) / "refs"
    return {
        # A local folder percent-encodes names; on an object store they are the key itself.
        unquote(path.parent.name).removeprefix(f"{kind}."): path.read_bytes()
        for path in folder.glob(f"{kind}.*/ref.json")
    }


@spec_1_repositories
def test_branch_files_point_where_official_says(name: str) -> None:
    found = {ref: decode_ref_file(data).text for ref, data in ref_files(name, "branch").items()}
    assert found == expectation(name)["branches"]


@spec_1_repositories
def test_tag_files_without_a_tombstone_point_where_official_says(name: str) -> None:
    root, expected = repository_path(name), expectation(name)
    found = {
        ref: decode_ref_file(data).text
        for ref, data in ref_files(name, "tag").items()
        if not (root / layout.tag_tombstone_key(ref)).exists()
    }
    # Official 2.3.0 does not list a tag whose folder it had to percent-encode.
    hidden = found.pop("größe", None)
    assert hidden in (None, expected["written"]["labels"].get("edits"))
    assert found == expected["tags"]


@spec_1_repositories
def test_tombstones_are_empty_files_beside_the_tags_that_were_deleted(name: str) -> None:
    root = repository_path(name)
    deleted = expectation(name)["written"]["deleted_tags"]
    marks = sorted(path.relative_to(root).as_posix() for path in root.glob("refs/**/*.deleted"))
    assert marks == sorted(layout.tag_tombstone_key(tag) for tag in deleted)
    assert all((root / mark).read_bytes() == TOMBSTONE for mark in marks)
    assert all((root / layout.tag_key(tag)).exists() for tag in deleted)


@spec_1_repositories
def test_ref_files_are_written_as_official_writes_them(name: str) -> None:
    for kind in ("branch", "tag"):
        for data in ref_files(name, kind).values():
            assert encode_ref_file(decode_ref_file(data)) == data


@spec_1_repositories
def test_files_are_where_the_layout_says(name: str) -> None:
    root = repository_path(name)
    for branch, tip in expectation(name)["branches"].items():
        assert (root / layout.branch_key(branch)).is_file()
        assert (root / layout.snapshot_key(SnapshotId.parse(tip))).is_file()
