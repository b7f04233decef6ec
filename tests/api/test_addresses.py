"""Addresses: a repository and one of its versions as a single text."""

from __future__ import annotations

from pathlib import Path

import pytest

import icefloe
from icefloe.api.addresses import (
    Address,
    is_address,
    parse_address,
    resolve_ref,
    snapshot_of,
)


@pytest.mark.parametrize(
    ("text", "url", "ref"),
    [
        ("weather", "weather", None),
        ("weather@main", "weather", "main"),
        ("some/weather@tag.v1.0", "some/weather", "tag.v1.0"),
        ("s3://bucket/prefix", "s3://bucket/prefix", None),
        ("s3://bucket/prefix@main", "s3://bucket/prefix", "main"),
        ("s3://bucket@main", "s3://bucket", "main"),
        ("s3://bucket/p@main?region=x", "s3://bucket/p?region=x", "main"),
        ("s3://bucket/p?region=x@main", "s3://bucket/p?region=x", "main"),
        ("file:///data/weather@v1", "file:///data/weather", "v1"),
        ("abfs://box@account.host/p", "abfs://box@account.host/p", None),
        ("abfs://box@account.host/p@main", "abfs://box@account.host/p", "main"),
        ("abfs://box@account.host", "abfs://box@account.host", None),
        ("icefloe+s3://bucket/p@main", "s3://bucket/p", "main"),
        ("icechunk+file:///p", "file:///p", None),
        ("s3://bucket/p|icechunk:@branch.main", "s3://bucket/p", "branch.main"),
        ("s3://bucket/p|icechunk:", "s3://bucket/p", None),
        ("weather@", "weather", None),
    ],
)
def test_addresses_are_taken_apart(text: str, url: str, ref: str | None) -> None:
    assert parse_address(text) == Address(url, ref)


def test_a_path_that_exists_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a@b").mkdir()
    assert parse_address(str(tmp_path / "a@b")) == Address(str(tmp_path / "a@b"), None)


def test_only_marked_texts_are_certainly_addresses() -> None:
    assert is_address("icefloe+s3://b/p")
    assert is_address("s3://b/p|icechunk:@tag.v1")
    assert not is_address("s3://b/p@main")


def test_what_follows_the_pipe_is_a_ref() -> None:
    with pytest.raises(icefloe.InvalidInputError, match="expected nothing or @REF"):
        parse_address("s3://b/p|icechunk:main")


def test_names_are_branches_then_tags_then_snapshots() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    first = repo.lookup_branch("main")
    repo.create_branch("same", first)
    repo.create_tag("same", first)
    repo.create_tag("branch.main", first)
    assert resolve_ref(repo, None) == {"branch": "main"}
    assert resolve_ref(repo, "same") == {"branch": "same"}
    assert resolve_ref(repo, "tag.same") == {"tag": "same"}
    assert resolve_ref(repo, "branch.main") == {"tag": "branch.main"}
    assert resolve_ref(repo, first.lower()) == {"snapshot_id": first}
    assert {snapshot_of(repo, ref) for ref in (None, "same", "tag.same", first)} == {first}
    with pytest.raises(icefloe.RefNotFoundError, match=r"there are branch\.main, main, same"):
        resolve_ref(repo, "typo")
